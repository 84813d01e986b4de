"""Marked models of every kind, and what locators find in each: the work of benchmarks.locate."""

import argparse
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import neuralmark
from benchmarks import _llm
from benchmarks._common import seconds_of
from benchmarks._llm import Array, Shape, noise
from benchmarks._suspects import ALONE, BESIDE, Row, Suspect, averaged, look, read
from benchmarks._tensors import save
from neuralmark import Key, Parameters, attacks
from neuralmark.attacks.engine.subject import read_weights
from neuralmark.errors import InfeasibleError
from neuralmark.marking.embedding import Embedding
from neuralmark.marking.options import Spread

Finding = dict[str, Any]
"""One marked model: title, limits of the AUC, facts, rows."""

HIDDEN, BEHIND_BASE = 0.55, 0.6
KEYS = 3
BASE_WEIGHTS, FEW_WEIGHTS = 120e6, 40e6
CHEAP = ("grid", "scale", "outliers", "repeated", "low_bits", "margins", "trailing", "peaks")
"""Locators that are run beside those that need a base."""


def key_of(number: int) -> Key:
    """The same keys in every run: these models protect nothing."""
    secret = hashlib.sha256(f"neuralmark benchmarks locate {number}".encode()).digest()
    return Key(Parameters(), b"", salt=hashlib.sha256(secret).digest(), secret=secret)


def finding(title: str, rows: Sequence[Row], **more: Any) -> Finding:
    """What is kept of a model; `limits` are those of the AUC alone and against a base."""
    return {"title": title, "rows": list(rows), "facts": {}, "limits": (HIDDEN, None), **more}


def suspect_of(
    done: Embedding, key: Key, source: Path, marked: Path, beside: Path | None = None
) -> Suspect:
    """The marked tensors of a file that `embed` wrote."""
    assert done.claim is not None
    placement = done.claim.placement
    public = None if beside is None else read(beside, placement)
    anchor = done.claim.anchor_digest
    now, before = read(marked, placement), read(source, placement)
    return Suspect(key, placement, now, public, before, anchor)


def facts(done: Embedding, suspect: Suspect) -> dict[str, str]:
    """How much was marked, and how far its weights moved."""
    assert suspect.unmarked is not None
    shifts, in_steps, moved = [], [], []
    for number in suspect.sampled:
        cut, mask = suspect.parts[number][0], suspect.mask(number)
        mask &= suspect.unmarked[cut] != 0
        old, new = suspect.unmarked[cut][mask], suspect.flat[cut][mask]
        size = np.abs(new - old)
        shifts.append(float(size.mean() / suspect.unmarked[cut].std()))
        in_steps.append(float(np.median(size / _llm.steps(old))))
        moved.append(float((size > 0).mean()))
    return {
        "marked": f"{len(suspect.flat):,} weights in {len(suspect.parts)} tensors",
        "change": f"{100 * done.change_relative:.3f} %",
        "strength": f"{done.strength:.2f}",
        "a carrier": f"{np.mean(shifts):.4f} σ on average, {np.mean(in_steps):.2f} steps of"
        " bfloat16 in the median",
        "carriers moved (of those that are not 0)": f"{100 * np.mean(moved):.1f} %",
        "bits": str(suspect.bits(suspect.flat)),
        **({} if done.exposure is None else {"exposure told": f"{done.exposure:.3f}"}),
    }


def llm(options: argparse.Namespace, folder: Path) -> list[Finding]:
    """An upcast language model under the default mark."""
    return [_llm_marked(options, folder, "wide", ATTACKS)]


def llm_quick(options: argparse.Namespace, folder: Path) -> list[Finding]:
    """The same with the mark in the few largest tensors."""
    return [_llm_marked(options, folder, "quick", ())]


ATTACKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("noise", {"amount": 0.5}),
    ("prune", {"share": 0.5, "how": "random"}),
    ("prune", {"share": 0.5}),
    ("quantize", {"to": "int4"}),
    ("trim", {"reach": 1.0}),
    ("trim", {"reach": 2.0, "how": "zero"}),
    ("expose", {}),
)
"""Of the suite, at moderate strength."""


def _llm_marked(
    options: argparse.Namespace,
    folder: Path,
    spread: Spread,
    members: Sequence[tuple[str, dict[str, Any]]],
) -> Finding:
    shape, key = Shape.of(options.weights), key_of(0)
    source, marked = folder / "model.safetensors", folder / "marked.safetensors"
    _llm.write(source, shape)
    made: list[Embedding] = []
    wrote = seconds_of(
        lambda: made.append(
            neuralmark.embed(source, key, marked, options=neuralmark.EmbedOptions(spread=spread))
        )
    )
    done = made[0]
    verified = seconds_of(lambda: neuralmark.verify(marked, key, claim=done.claim))
    suspect = suspect_of(done, key, source, marked)
    hashed = seconds_of(lambda: hashlib.sha256(suspect.flat.data))
    whole = marked.stat().st_size / suspect.flat.nbytes
    told = facts(done, suspect) | {
        "embedding": f"{wrote:.1f} s, {wrote / hashed / whole:.2f} times SHA-256 of the file",
        "verifying": f"{verified:.1f} s, {verified / hashed:.2f} times SHA-256 of what it reads",
    }
    source.unlink()
    marked.unlink()
    for name, settings in members:
        words = ", ".join(f"{value}" for value in settings.values())
        told[f"after {name} {words}".strip()] = _after(suspect, done, name, settings)
    title = f"llm {spread}, {shape.weights / 1e6:,.0f} million weights"
    return finding(title, look(suspect, ALONE), facts=told)


def _after(suspect: Suspect, done: Embedding, name: str, settings: dict[str, Any]) -> str:
    """Bits after one attack of the suite on the marked tensors."""
    parts = zip(suspect.placement, suspect.parts, strict=True)
    weights = {name: suspect.flat[cut].reshape(shape) for (name, _), (cut, shape) in parts}
    attack = attacks.get(name)(**settings)
    result = attacks.launch(attack, weights, suspect.key, claim=done.claim)
    bits = 0 if result.after is None else result.after.matched
    return f"{bits} bits, change {100 * result.change:.1f} %"


def llm_base(options: argparse.Namespace, folder: Path) -> list[Finding]:
    """Fine-tuned from a public base by 1 and 5 %, and by a merged adapter."""
    shape = Shape.of(min(options.weights, BASE_WEIGHTS))
    base, tuned = folder / "base.safetensors", folder / "tuned.safetensors"
    _llm.write(base, shape)
    found = []
    for share in (0.01, 0.05):
        _llm.write(tuned, shape, noise(share))
        title = f"llm tuned by {100 * share:g} %, {shape.weights / 1e6:,.0f} million weights"
        found.append(_hidden(title, base, tuned, folder))
    _llm.write(tuned, shape, _llm.adapter(0.05))
    refused = _hidden("llm with a merged adapter of rank 16, 5 %", base, tuned, folder)
    found += [refused | {"must_refuse": True}]
    found.append(_hidden("the same, in span", base, tuned, folder, in_span=True))
    return found


def _hidden(title: str, base: Path, tuned: Path, folder: Path, *, in_span: bool = False) -> Finding:
    """Mark behind the fine-tuning and look with the base; or why it was refused."""
    key, marked = key_of(1), folder / "hidden.safetensors"
    try:
        done = neuralmark.embed(
            tuned,
            key,
            marked,
            options=neuralmark.EmbedOptions(base=base, in_span=in_span),
            overwrite=True,
        )
    except InfeasibleError as error:
        return finding(title, (), facts={"refused": str(error)})
    suspect = suspect_of(done, key, tuned, marked, base)
    rows = look(suspect, (*CHEAP, *BESIDE))
    return finding(title, rows, facts=facts(done, suspect), limits=(HIDDEN, BEHIND_BASE))


def resnets(options: argparse.Namespace, folder: Path) -> list[Finding]:
    """Real networks: as they are, upcast from bfloat16, and half pruned."""
    found = []
    for name in ("resnet20", "resnet56"):
        path = next((options.data / "weights").glob(f"*{name}*.th"))
        whole = {name: np.asarray(w, np.float32) for name, w in read_weights(path).items()}
        for kind, change in (("", np.array), ("upcast", _llm.upcast), ("half pruned", pruned)):
            source = folder / f"{name}.safetensors"
            save(source, {n: change(w) if w.ndim > 1 else w for n, w in whole.items()})
            found.append(_keys(f"{name} {kind}".strip(), source, folder))
    return found


def pruned(w: Array) -> Array:
    """The smaller half of the weights set to zero."""
    return np.where(np.abs(w) > np.median(np.abs(w)), w, np.float32(0))


def _keys(title: str, source: Path, folder: Path) -> Finding:
    """One network under several keys."""
    runs = []
    for number in range(KEYS):
        key, marked = key_of(number), folder / "marked.safetensors"
        done = neuralmark.embed(source, key, marked, overwrite=True)
        suspect = suspect_of(done, key, source, marked)
        runs.append(look(suspect, ALONE))
    told = facts(done, suspect)
    return finding(f"{title}, {KEYS} keys", averaged(runs), facts=told)


def cnn(options: argparse.Namespace, _folder: Path) -> list[Finding]:
    """Trained marks: stream filter in both modes, the published filter as the contrast."""
    import torch

    from benchmarks import _networks

    torch.set_num_threads(1)
    clean, longer = (
        _networks.network(options.data, setting, options.networks).weight.numpy().reshape(-1)
        for setting in (_networks.CLEAN, _networks.LONGER)
    )
    found = []
    for setting in (_networks.GRADIENT[1], _networks.PROJECTION[1], _networks.TILED[0]):
        network = _networks.network(options.data, setting, options.networks)
        assert network.key is not None
        w = network.weight.numpy()
        placement = ((_networks.NAME, tuple(w.shape)),)
        told = {"bits": str(network.bits), "accuracy": f"{100 * network.accuracy:.1f} %"}
        told["beside"] = "the clean network of the same seed, which no thief has"
        suspect = Suspect(network.key, placement, w.reshape(-1), clean)
        made = finding(f"cnn {setting.label}", look(suspect, (*ALONE, *BESIDE)), facts=told)
        found.append(made | {"exposed": setting.filter == "tiled"})
        suspect = Suspect(network.key, placement, w.reshape(-1), longer)
        title = f"cnn {setting.label}, beside the clean network one epoch later"
        found.append(finding(title, look(suspect, BESIDE)))
    return found


def neighbours(options: argparse.Namespace, folder: Path) -> list[Finding]:
    """Two releases of one model: both marked, one marked, the same one marked by two keys."""
    shape = Shape.of(min(options.weights, FEW_WEIGHTS))
    first, second = folder / "first.safetensors", folder / "second.safetensors"
    marked, other = folder / "marked.safetensors", folder / "other.safetensors"
    _llm.write(first, shape)
    _llm.write(second, shape, noise(0.01))
    done = neuralmark.embed(first, key_of(2), marked)
    suspect = suspect_of(done, key_of(2), first, marked)
    later = _released(suspect)
    found = [
        finding(
            "release 2 tuned by 1 % from marked release 1",
            look(later, BESIDE),
            facts=facts(done, suspect) | {"bits later": str(later.bits(later.flat))},
            limits=(HIDDEN, HIDDEN),
        )
    ]
    twice = neuralmark.embed(first, key_of(3), other)
    two = suspect_of(done, key_of(2), first, marked, other)
    found.append(
        finding("one release marked by two keys", look(two, BESIDE), facts=facts(twice, two))
    )
    done = neuralmark.embed(second, key_of(2), other, overwrite=True)
    both = suspect_of(done, key_of(2), second, other, marked)
    told = facts(done, both)
    found.append(
        finding(
            "release 2 marked anew with the key of release 1",
            look(both, BESIDE),
            facts=told,
            limits=(HIDDEN, BEHIND_BASE),
        )
    )
    one = suspect_of(done, key_of(2), second, other, first)
    title = "marked release 2, unmarked release 1 public, base= not given"
    found.append(finding(title, look(one, BESIDE), facts=told))
    return found


def _released(suspect: Suspect) -> Suspect:
    """The next release: every marked tensor fine-tuned by 1 %."""
    made, rng = np.empty_like(suspect.flat), np.random.default_rng(5)
    for cut, _ in suspect.parts:
        made[cut] = noise(0.01)(suspect.flat[cut], rng)
    return Suspect(suspect.key, suspect.placement, made, suspect.flat)


MODELS: dict[str, Callable[[argparse.Namespace, Path], list[Finding]]] = {
    "llm": llm,
    "llm-quick": llm_quick,
    "llm-base": llm_base,
    "resnets": resnets,
    "cnn": cnn,
    "neighbours": neighbours,
}
NEED_DATA = ("resnets", "cnn")
