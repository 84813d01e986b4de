"""The demo, step by step: train, mark, verify, refuse another key, damage, expose, report."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from neuralmark import zoo
from neuralmark.attacks import Attack, Data, LaunchOptions, Result, launch
from neuralmark.attacks.expose import Expose
from neuralmark.attacks.noise import Noise
from neuralmark.attacks.prune import RANDOM, Prune
from neuralmark.attacks.quantize import Quantize
from neuralmark.core.key import PUBLISHED_ROUNDS, TILED, Parameters
from neuralmark.demo.page import DemoOutcome, DemoRow, Trained, demo_page
from neuralmark.keys.key import Key
from neuralmark.lab.execution.training import TrainingCourse, train
from neuralmark.marking.beside import claim_path
from neuralmark.marking.embedding import embed
from neuralmark.marking.options import AttachOptions, EmbedOptions
from neuralmark.marking.verification import verify
from neuralmark.reports.verdict import verdict_page
from neuralmark.storage import files
from neuralmark.training.attach import attach

Say = Callable[[str], None]
NETWORK = zoo.architecture("digits-mlp")
COURSE = TrainingCourse(epochs=12, rate=0.05, batch=64)
STRENGTH = 2.0  # twice the default: a mark this small network carries without losing accuracy
GRADIENT = AttachOptions(mode="gradient", strength=2.0)
PROJECTION = AttachOptions(mode="projection")
OWNER = "NeuralMark demo"

DAMAGES: dict[str, Attack] = {
    "noise, 50 % of the deviation": Noise(0.5),
    "noise, 100 %": Noise(1.0),
    "random pruning, 30 %": Prune(0.3, RANDOM),
    "random pruning, 50 %": Prune(0.5, RANDOM),
    "half precision": Quantize("fp16"),
    "int8 per channel": Quantize("int8", group=0),
}
"""What a stolen model goes through: the demo's table."""
CURVES: dict[str, tuple[Attack, ...]] = {
    "noise / deviation of the weights": tuple(
        Noise(amount) for amount in (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    ),
    "share of weights set to zero": tuple(
        Prune(share, RANDOM) for share in (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 0.9)
    ),
}


def run(folder: Path, say: Say) -> DemoOutcome:
    """Run the demo in `folder` and write its files there; says what it does as it goes."""
    folder.mkdir(parents=True, exist_ok=True)
    original, marked = folder / "model.safetensors", folder / "marked.safetensors"
    data = zoo.data("digits")
    examples = data.as_data()
    say(f"training a small network on {len(data.train_labels):,} handwritten digits")
    clean = _train("without a mark", original, data)

    say("drawing a key and writing its mark into the finished checkpoint")
    key, stranger = Key.new(owner=OWNER), Key.new(owner="somebody else")
    files.remove(folder / "demo.nmkey")
    key.save(folder / "demo.nmkey", None)
    embedding = embed(original, key, marked, EmbedOptions(strength=STRENGTH), overwrite=True)
    verdict, foreign = verify(marked, key), verify(marked, stranger)

    damaged = {}
    for name, damage in DAMAGES.items():
        say(f"damaging it: {name}")
        damaged[name] = _launch(damage, marked, key, examples)
    curves = {
        label: tuple(_launch(damage, marked, key, examples) for damage in damages)
        for label, damages in CURVES.items()
    }
    trained = [clean]
    for options in (GRADIENT, PROJECTION):
        say(f"training it again with the mark in the loop: {options.mode} mode")
        path = folder / f"trained-{options.mode}.safetensors"
        trained.append(_train(f"{options.mode} mode", path, data, key, options))
    say("training it with the filter as published, and looking for both marks without a key")
    published = Key.new(Parameters(rounds=PUBLISHED_ROUNDS, filter=TILED), owner=OWNER)
    path = folder / "trained-published.safetensors"
    trained.append(_train("gradient mode, published", path, data, published, GRADIENT))
    exposures = {
        title: _launch(Expose(), folder / f"{file}.safetensors", owner, examples)
        for title, file, owner in (
            ("as published (tiled filter)", "trained-published", published),
            ("ours, gradient mode", "trained-gradient", key),
            ("ours, projection mode", "trained-projection", key),
            ("ours, written afterwards", "marked", key),
        )
    }
    outcome = DemoOutcome(
        embedding, verdict, foreign, _rows(clean, damaged), curves, tuple(trained), exposures
    )
    files.write_text(folder / "verdict.html", verdict_page(verdict), overwrite=True)
    files.write_text(folder / "report.html", demo_page(outcome), overwrite=True)
    return outcome


def _train(
    name: str,
    path: Path,
    data: zoo.DataSet,
    key: Key | None = None,
    options: AttachOptions | None = None,
) -> Trained:
    """Train from the same start, save, and verify the saved file where there is a key."""
    torch.manual_seed(COURSE.seed)
    model = NETWORK.build(data.classes)
    mark = partial(attach, key=key, options=options) if key else None
    names = [each for each, _ in model.named_parameters()]
    outcome = train(model, data, COURSE, mark, None, lambda *_: None, names)
    save_file(model.state_dict(), path)
    verdict = None
    if key is not None and outcome.claim is not None:
        outcome.claim.save(claim_path(path), overwrite=True)
        verdict = verify(path, key, claim=outcome.claim)
    return Trained(name, outcome.row["history"], outcome.row["moved"], verdict)


def _rows(clean: Trained, damaged: Mapping[str, Result]) -> tuple[DemoRow, ...]:
    """The network unmarked, marked, and after each damage."""
    marked = next(iter(damaged.values()))
    return (
        DemoRow("unmarked", clean.history[-1]["accuracy"], None),
        DemoRow("marked", marked.accuracy_before, marked.before),
        *(
            DemoRow(f"marked, then {name}", result.accuracy_after, result.after)
            for name, result in damaged.items()
        ),
    )


def _launch(attack: Attack, path: Path, key: Key, data: Data) -> Result:
    """Attack the network of a marked file: tested and verified before and after."""
    model = NETWORK.build(data.classes)
    model.load_state_dict(load_file(path))
    claim, options = claim_path(path), LaunchOptions(demand=False)
    return launch(attack, model, key, options, claim=claim, data=data)
