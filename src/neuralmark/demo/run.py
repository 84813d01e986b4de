"""The demo, step by step: train, mark, verify, refuse another key, damage, report."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from neuralmark.demo import damage, digits, exposing
from neuralmark.demo.page import Curve, DemoOutcome, DemoRow, Trained, demo_page
from neuralmark.keys.key import Key
from neuralmark.marking.claiming import claim_path
from neuralmark.marking.embedding import embed
from neuralmark.marking.options import EmbedOptions, Mode
from neuralmark.marking.verification import verify
from neuralmark.records import Claim, Verdict
from neuralmark.reports.verdict import verdict_page
from neuralmark.storage import files

Say = Callable[[str], None]
STRENGTH = 2.0  # twice the default: a mark this small network carries without losing accuracy
NOISE_LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
PRUNED_SHARES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 0.9)


@dataclass(frozen=True)
class DemoBench:
    """A folder to work in, the data, the key and where its mark was put."""

    folder: Path
    data: digits.DemoDigits
    key: Key
    tensors: tuple[str, ...]

    def measure(self, name: str, state: damage.State) -> tuple[DemoRow, Verdict]:
        """Save damaged weights, read the mark back from the file, test the accuracy."""
        path = self.folder / "damaged.safetensors"
        digits.save(state, path)
        verdict = verify(path, self.key, tensors=self.tensors)
        row = DemoRow(name, digits.accuracy(state, self.data), verdict.matched, verdict.verified)
        return row, verdict


def run(folder: Path, say: Say) -> DemoOutcome:
    """Run the demo in `folder` and write its files there; says what it does as it goes."""
    folder.mkdir(parents=True, exist_ok=True)
    original, marked = folder / "model.safetensors", folder / "marked.safetensors"
    data = digits.load()
    say(f"training a small network on {len(data.train_x):,} handwritten digits")
    clean = digits.train(data)
    state = clean.state
    digits.save(state, original)

    say("drawing a key and writing its mark into the finished checkpoint")
    key, stranger = Key.new(owner="NeuralMark demo"), Key.new(owner="somebody else")
    files.remove(folder / "demo.nmkey")
    key.save(folder / "demo.nmkey", None)
    embedding = embed(
        original, key, marked, options=EmbedOptions(strength=STRENGTH), overwrite=True
    )
    verdict, foreign = verify(marked, key), verify(marked, stranger)

    bench = DemoBench(folder, data, key, embedding.tensors)
    marked_state = digits.read(marked)
    rows = [
        DemoRow("unmarked", digits.accuracy(state, data), None, None),
        bench.measure("marked", marked_state)[0],
    ]
    for name, inflict in damage.NAMED.items():
        say(f"damaging it: {name}")
        rows.append(bench.measure(f"marked, then {name}", inflict(marked_state))[0])
    curves = (
        _curve(bench, marked_state, "noise", "noise / deviation of the weights", NOISE_LEVELS),
        _curve(bench, marked_state, "prune", "share of weights set to zero", PRUNED_SHARES),
    )
    files.remove(folder / "damaged.safetensors")
    trained = [Trained("without a mark", clean.history, clean.moved, None)]
    for mode in ("gradient", "projection"):
        say(f"training it again with the mark in the loop: {mode} mode")
        trained.append(_train_marked(folder, data, key, mode))
    say("training it with the filter as published, and looking for both marks without a key")
    published = exposing.published_key()
    named = folder / "trained-published.safetensors"
    trained.append(_train_marked(folder, data, published, "gradient", "published"))
    exposures = tuple(
        exposing.expose(title, path, Claim.load(claim_path(path)), owner, data)
        for title, path, owner in (
            ("as published (tiled filter)", named, published),
            ("ours, gradient mode", folder / "trained-gradient.safetensors", key),
            ("ours, projection mode", folder / "trained-projection.safetensors", key),
            ("ours, written afterwards", marked, key),
        )
    )
    outcome = DemoOutcome(
        embedding.strength,
        embedding.change_relative,
        embedding.tensors,
        verdict,
        foreign,
        tuple(rows),
        curves,
        tuple(trained),
        exposures,
    )
    files.write_text(folder / "verdict.html", verdict_page(verdict), overwrite=True)
    files.write_text(folder / "report.html", demo_page(outcome), overwrite=True)
    return outcome


def _train_marked(
    folder: Path, data: digits.DemoDigits, key: Key, mode: Mode, name: str = ""
) -> Trained:
    run = digits.train(data, key=key, mode=mode)
    path = folder / f"trained-{name or mode}.safetensors"
    digits.save(run.state, path)
    assert run.claim is not None
    run.claim.save(claim_path(path), overwrite=True)
    title = f"{mode} mode, {name}" if name else f"{mode} mode"
    return Trained(title, run.history, run.moved, verify(path, key, claim=run.claim))


def _curve(
    bench: DemoBench, state: damage.State, kind: str, label: str, levels: tuple[float, ...]
) -> Curve:
    inflict = damage.noise if kind == "noise" else damage.prune
    rows = [bench.measure(kind, inflict(level)(state))[0] for level in levels]
    return Curve(
        label,
        tuple((level, row.accuracy) for level, row in zip(levels, rows, strict=True)),
        tuple(
            (level, (row.matched or 0) / bench.key.parameters.bits)
            for level, row in zip(levels, rows, strict=True)
        ),
    )
