"""What is evaluated after MPAI-NNW: the marked network and the unmarked original, read once."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuralmark import api
from neuralmark.attacks.contract import Data, Outcome
from neuralmark.attacks.engine.arena import Arena
from neuralmark.attacks.engine.launch import carried
from neuralmark.attacks.engine.options import StandardOptions
from neuralmark.attacks.engine.subject import Subject, subject_of
from neuralmark.attacks.engine.triggered import carried_live, reads_activations
from neuralmark.errors import DataMismatchError
from neuralmark.keys.key import Key
from neuralmark.marking.beside import FROM_FILE
from neuralmark.marking.evidence import Evidence
from neuralmark.records import Claim, Status, Verdict
from neuralmark.triggers.triggers import Triggers

NO_DATA = (
    "not measured: needs a live module and data, from Python (neuralmark.attacks.standard with"
    " data=...)"
)


@dataclass(frozen=True, eq=False)
class Bench:
    """What is evaluated, with all that reading its mark takes."""

    model: Any
    whole: Subject
    key: Key
    options: StandardOptions
    claim: Claim | str | Path | None
    data: Data | None
    triggers: Triggers | str | Path | None
    evidence: Evidence
    before: Verdict
    """On the marked network as it came."""

    @property
    def activations(self) -> bool:
        """Whether the mark is read from activations."""
        return reads_activations(self.key)

    @property
    def live(self) -> bool:
        """Whether the network runs and there is data to run it on."""
        return self.whole.module is not None and self.data is not None

    @property
    def marked(self) -> list[str]:
        """Stored names of the marked tensors; none where activations are marked."""
        names = [tensor.stored_name for tensor in self.before.tensors]
        return [name for name in names if name in self.whole.weights]

    @property
    def place(self) -> Evidence:
        """Where the mark is, for a look at the unmarked network: the claim, or what was found."""
        if self.evidence.claim is not None:
            return Evidence(self.evidence.claim)
        key, found = self.key, self.before
        names = (key.fingerprint, key.commitment, key.parameters)
        claim = Claim(*names, found.placement, found.checkpoint_digest)
        return Evidence(replace(claim, triggers=found.trigger_digest))

    def read(self, module: Any) -> Verdict:
        """The verdict on a live module."""
        return api.verify(module, self.key, claim=self.claim, triggers=self.triggers)


def bench_for(
    model: Any, whole: Subject, key: Key, options: StandardOptions, **given: Any
) -> Bench:
    """Read the mark once; without it there is nothing to evaluate."""
    claim, triggers = given["claim"], given["triggers"]
    if reads_activations(key):
        before = carried_live(whole, key, claim, triggers)
        evidence = Evidence(Claim.given(claim))
    else:
        file = getattr(model, FROM_FILE, model)
        source = Path(file) if isinstance(file, str | Path) else whole
        evidence = Arena(source, key, claim, (), options.seed, anchor=options.anchor).sought()
        before = carried(replace(whole, module=None), key, evidence)
    return Bench(model, whole, key, options, evidence=evidence, before=before, **given)


def unmarked_of(bench: Bench, original: Any) -> Subject:
    """The network before it was marked, live where the marked one is; refused if it is not that."""
    found = subject_of(original)
    for name in bench.marked or bench.whole.weights:
        theirs = found.weights.get(name)
        if theirs is None or theirs.shape != bench.whole.weights[name].shape:
            raise DataMismatchError(
                f"{found.label} is not the unmarked original of {bench.whole.label}: it has no"
                f" tensor {name!r} of this shape; give the network before it was marked"
                " (original=...)"
            )
    if bench.whole.module is not None and found.module is None:
        shared = {name: w for name, w in found.weights.items() if name in bench.whole.weights}
        found = replace(bench.whole.after(Outcome(shared)), label=found.label)
    if _status(bench, found) == bench.before.status:
        raise DataMismatchError(
            f"{found.label} carries the mark itself: give the network as it was before"
            " (original=...)"
        )
    return found


def _status(bench: Bench, subject: Subject) -> Status:
    if bench.activations:
        return bench.read(subject.module).status
    return carried(replace(subject, module=None), bench.key, bench.place, demand=False).status
