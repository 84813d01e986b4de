"""Language models: tuned on E2E with a mark or without, then scored on what they say."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from neuralmark import zoo
from neuralmark.errors import MissingDataSetError
from neuralmark.lab.execution.store import Row, Store
from neuralmark.lab.plan.keys import key_for
from neuralmark.lab.plan.spec import TuningSpec
from neuralmark.marking.options import Target
from neuralmark.storage import bookmark, files
from neuralmark.text import e2e, generation, gpt2, tuning
from neuralmark.zoo.language import GPT2

if TYPE_CHECKING:
    import torch

Notify = Callable[[int, int], None]
Some = TypeVar("Some")

MODEL = "model"
"""The folder, in that of a run, with what transformers or peft save of the model."""
SAMPLES = 5


def tune(
    store: Store, folder: Path | None, device: "torch.device", spec: TuningSpec, notify: Notify
) -> Row:
    """Train and score; goes on from the last epoch of a killed run."""
    import torch

    if folder is None:
        raise MissingDataSetError(f"E2E is read from a folder: name it (data=DIR; {e2e.ARCHIVE})")
    data = e2e.load(folder, spec.split)
    store.settle(f"e2e-{spec.split}", data.digest)
    network = zoo.architecture(spec.architecture, _options(store, folder, spec))
    assert isinstance(network, GPT2)
    tokenizer = _tokenizer(folder, network)
    torch.manual_seed(spec.seed)
    model: Any = network.build().to(device)
    found = _trained(store, spec, network, model, tokenizer, spread(data.rows, spec.rows), notify)
    row: Row = {
        "history": [asdict(epoch) for epoch in found.history],
        "steps": found.steps,
        "rate": found.history[-1].rate,
        "data": {"name": "e2e", "digest": data.digest, "note": _note(data, spec)},
        **_scored(store, folder, spec, model, tokenizer),
    }
    home = store.folder(spec)
    _save(model, home / MODEL)
    if found.claim is not None:
        found.claim.save(home / "claim.json", overwrite=True)
    return row


def spread(rows: Sequence[Some], count: int | None) -> list[Some]:
    """Some of them, evenly from first to last.

    >>> spread("abcdefgh", 4)
    ['a', 'c', 'e', 'g']
    """
    if count is None or count >= len(rows):
        return list(rows)
    return [rows[i * len(rows) // count] for i in range(count)]


def _options(store: Store, folder: Path, spec: TuningSpec) -> dict[str, Any]:
    """Where the weights come from: another run, a folder of the data, the hub, or nowhere."""
    if spec.start is not None:
        weights = str(store.folder(spec.start) / MODEL)
    elif zoo.architecture(spec.architecture).learns_tokens:  # type: ignore[attr-defined]
        weights = ""
    else:
        here = folder / spec.architecture
        weights = str(here) if (here / "config.json").is_file() else spec.architecture
    return {"weights": weights, "lora": spec.adapted}


def _tokenizer(folder: Path, network: GPT2) -> Any:
    """GPT-2's own, from the data's folder or the hub; a tiny model's are learnt from all rows."""
    if network.learns_tokens:
        return gpt2.learnt_tokenizer(e2e.load(folder, "train").rows, network.vocabulary)
    here = folder / "gpt2"
    return gpt2.load_tokenizer(here if here.is_dir() else "gpt2")


def _trained(
    store: Store,
    spec: TuningSpec,
    network: GPT2,
    model: Any,
    tokenizer: Any,
    rows: Sequence[e2e.E2ERow],
    notify: Notify,
) -> tuning.FinishedTuning:
    state = store.folder(spec) / "state.pt"

    def train(mark: tuning.TextMarking | None) -> tuning.FinishedTuning:
        return tuning.train(
            model,
            tokenizer,
            rows,
            tuning.Schedule(spec.epochs, spec.batch, spec.rate, spec.warm_up),
            mark=mark,
            seed=spec.seed,
            resume=bookmark.read(state),
            listener=_Keeper(state, notify),
        )

    marking = spec.mark
    if marking is None:
        return train(None)
    target: Target = "lora-delta" if spec.adapted else "weights"
    return key_for(
        spec,
        lambda key: train(
            tuning.TextMarking(key, network.marked, marking.mode, marking.strength, target)
        ),
    )


class _Keeper(tuning.Listener):
    """Tells of every step, and keeps every epoch."""

    def __init__(self, path: Path, notify: Notify) -> None:
        self._path, self._notify = path, notify

    def step(self, done: int, total: int, loss: float) -> None:
        self._notify(done, total)

    def epoch(self, epoch: tuning.TuningEpoch, snapshot: Callable[[], tuning.Snapshot]) -> None:
        bookmark.write(self._path, snapshot())


def _scored(store: Store, folder: Path, spec: TuningSpec, model: Any, tokenizer: Any) -> Row:
    """The five scores, and a few of the sentences."""
    if spec.meanings == 0:
        return {}
    test = e2e.load(folder, "test")
    store.settle("e2e-test", test.digest)
    cases = spread(e2e.group(test.rows), spec.meanings)
    chosen = {case.meaning for case in cases}
    rows = [row for row in test.rows if row.meaning in chosen]
    found = generation.assess(model, tokenizer, rows, generation.Search(beams=spec.beams))
    said = zip(found.meanings[:SAMPLES], found.hypotheses[:SAMPLES], strict=True)
    return {"scores": asdict(found.scores), "meanings": len(cases), "said": [*map(list, said)]}


def _note(data: e2e.E2ESplit, spec: TuningSpec) -> str:
    used = "" if spec.rows is None else f", {min(spec.rows, len(data.rows)):,} rows used"
    return data.note + used


def _save(model: Any, folder: Path) -> None:
    """What transformers or peft save, whole or not at all."""
    with files.replacing(folder, overwrite=True) as beside:
        model.save_pretrained(beside)
