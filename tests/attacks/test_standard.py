"""The evaluation after MPAI-NNW: true to the attacks, to the original and to what was measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_state

from neuralmark import Key, attacks, embed, imprint, rebuild_claim, schemes, verify
from neuralmark.attacks import StandardOptions, StandardReport, standard
from neuralmark.attacks.engine import costing
from neuralmark.attacks.engine.arena import seed_of
from neuralmark.attacks.engine.costing import CostTask, measured
from neuralmark.attacks.noise import Noise
from neuralmark.attacks.quantize import Quantize
from neuralmark.errors import (
    AttackError,
    DataMismatchError,
    LiveModelError,
    MissingDataError,
    NoMarkError,
    ParameterError,
    TriggerMismatchError,
    UnknownAttackError,
)
from tests.support import triggered
from tests.support.images import LAYER, network
from tests.support.images import data as images
from tests.support.learnt import digits
from tests.support.models import QUICK, gaussian_model
from tests.support.schemes import MARKING, key_of, layers, parameters, trained

KEY = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)
NOISE = StandardOptions(only=["noise"], jobs=1)


def made(report: StandardReport, name: str) -> dict[float, Any]:
    """The points of a modification, by value."""
    (found,) = (each for each in report.modifications if each.name == name)
    return {point.value: point for point in found.points}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An unmarked model and its marked copy."""
    model = gaussian_model(tmp_path / "model.safetensors")
    embed(model, KEY, tmp_path / "marked.safetensors")
    return tmp_path


def test_points_are_what_the_attacks_leave(folder: Path) -> None:
    marked, model = folder / "marked.safetensors", folder / "model.safetensors"
    options = StandardOptions(model, ["noise", "quantize"], jobs=1)
    report = standard(marked, KEY, options)
    noise, bits = made(report, "Gaussian noise addition"), made(report, "quantisation")
    for value, attack in ((1.0, Noise(1.0)), (2.0, Quantize("int2", group=0))):
        given = attacks.LaunchOptions(seed=seed_of(attack, 0))
        result = attacks.launch(attack, marked, KEY, given)
        assert result.after is not None
        point = (noise if isinstance(attack, Noise) else bits)[value]
        assert point.matched == result.after.matched < 155
        assert not point.detected
        assert point.error_rate == 1 - point.matched / 160
        assert point.change == result.change
    assert noise[0.05].detected
    assert noise[0.05].error_rate == 0
    assert [each.missed for each in report.modifications] == [1, 1]
    assert (report.missed, len(report.points)) == (2, 11)


def test_the_original_is_modified_and_compared(folder: Path) -> None:
    marked, model = folder / "marked.safetensors", folder / "model.safetensors"
    report = standard(marked, KEY, replace(NOISE, original=model))
    told = report.imperceptibility
    old, new = load_file(model), load_file(marked)
    layers = [f"layer{i}.weight" for i in (1, 2)]
    moved = np.concatenate([(new[name] - old[name]).ravel() for name in layers])
    whole = np.concatenate([old[name].ravel() for name in layers])
    assert told.change == pytest.approx(np.linalg.norm(moved) / np.linalg.norm(whole), rel=1e-5)
    assert told.change is not None
    assert told.change_whole is not None
    assert 0 < told.change_whole < told.change
    assert (report.unmarked, report.false_alarms) == (6, 0)
    chance = [point.matched_unmarked for point in report.points]
    assert all(count is not None and 40 < count < 120 for count in chance)
    bare = standard(marked, KEY, NOISE)
    assert (bare.original, bare.unmarked, bare.imperceptibility.change) == (None, 0, None)
    assert "original=..." in bare.imperceptibility.change_why
    assert all(point.false_alarm is None for point in bare.points)
    assert [p.matched for p in bare.points] == [p.matched for p in report.points]


def test_robustness_does_not_depend_on_processes_and_memory_is_measured_in_them(
    folder: Path,
) -> None:
    marked, options = folder / "marked.safetensors", replace(NOISE, only=["noise", "rewrite"])
    here = standard(marked, KEY, options)
    apart = standard(marked, KEY, replace(options, jobs=2))
    plain = [[replace(point, seconds=0) for point in report.points] for report in (here, apart)]
    assert plain[0] == plain[1]
    for report, known in ((here, False), (apart, True)):
        cost = report.cost
        for spent in (cost.embed, cost.verify, cost.digest):
            assert spent is not None
            assert spent.seconds > 0
            assert (spent.memory is not None, spent.idle is not None) == (known, known)
        assert cost.size == marked.stat().st_size
        assert cost.embed_how == "into a copy of the marked file"
    assert apart.cost.verify is not None
    assert 20e6 < (apart.cost.verify.idle or 0) <= (apart.cost.verify.memory or 0) < 4e9
    assert sorted(path.name for path in folder.iterdir()) == [
        *("marked.safetensors", "marked.safetensors.anchor", "marked.safetensors.claim.json"),
        "model.safetensors",
    ]


def test_memory_is_that_of_the_operation(tmp_path: Path) -> None:
    """A digest streams; a tensor of 64 MB that is read whole shows."""
    save_file({"a": np.zeros(1 << 24, np.float32)}, tmp_path / "large.safetensors")
    task = CostTask("digest", tmp_path / "large.safetensors", KEY, None, None)
    spent = measured(task, apart=True)
    assert spent.memory is not None
    assert spent.idle is not None
    assert spent.memory - spent.idle < 32e6
    assert spent.runs == 3


@pytest.mark.parametrize("name", MARKING)
def test_every_scheme_of_weights(name: str, tmp_path: Path) -> None:
    key = key_of(parameters(name))
    model = network(10)
    save_state(model.state_dict(), tmp_path / "model.safetensors")
    writes, where = schemes.get(name).writes, layers(name)
    if writes:
        claim = imprint(model, key, tensors=where).claim
    else:
        model, claim = trained(key), None
    assert verify(model, key, tensors=where).verified
    marked = tmp_path / "marked.safetensors"
    save_state(model.state_dict(), marked)
    if len(where) > 1 and not writes:
        _, claim = rebuild_claim(marked, key, tensors=where)
    options = StandardOptions(tmp_path / "model.safetensors", ["noise", "rewrite"], jobs=1)
    report = standard(marked, key, options, claim=claim)
    assert report.before.scheme == name
    assert report.proves
    assert made(report, "Gaussian noise addition")[0.05].detected
    assert report.false_alarms == 0
    assert report.unmarked >= 6
    assert (report.cost.embed is not None) == writes
    if not writes:
        assert report.cost.embed_how.startswith(f"not measured: {name} is trained in")
        (over,) = (each for each in report.modifications if each.attack == "rewrite")
        assert over.points == ()
        assert "cannot be written post hoc" in over.why
    assert StandardReport.from_dict(report.to_dict()) == report


def right(model: Any) -> float:
    """Share of the test images that a network tells right."""
    data = images()
    with torch.no_grad():
        answers = model.eval()(data.test_inputs).argmax(1)
    return float((answers == data.test_labels).double().mean())


def test_live_networks_are_trained_and_their_accuracy_told() -> None:
    model = network()
    key = key_of(parameters("neuralmark"))
    claim = imprint(model, key, tensors=[LAYER]).claim
    options = StandardOptions(network(), ["finetune", "distill"])
    report = standard(model, key, options, claim=claim, data=images())
    told = report.imperceptibility
    assert told.accuracy_unmarked == right(network())
    assert told.accuracy_marked == right(model)
    assert told.loss == right(network()) - right(model)
    assert (told.examples, told.accuracy_why) == (32, "")
    tuned = made(report, "fine-tuning")
    assert sorted(tuned) == [1, 2, 4]
    assert all(point.detected for point in tuned.values())
    assert tuned[1].change < tuned[4].change
    assert all(point.accuracy is not None for point in report.points)
    (student,) = made(report, "knowledge distillation").values()
    assert not student.detected
    assert student.matched < 120
    assert (report.unmarked, report.false_alarms) == (4, 0)
    cost = report.cost
    assert (cost.embed, cost.embed_how) == (None, "not measured: a live module is no file")
    assert cost.step_ratio == (cost.step or 0) / (cost.step_clean or 1)
    assert cost.inference
    assert all(not each.why for each in report.modifications)


def test_an_original_file_is_loaded_into_the_live_network(tmp_path: Path) -> None:
    model = network()
    save_state(model.state_dict(), tmp_path / "model.safetensors")
    key = key_of(parameters("neuralmark"))
    claim = imprint(model, key, tensors=[LAYER]).claim
    options = StandardOptions(tmp_path / "model.safetensors", ["noise"])
    told = standard(model, key, options, claim=claim, data=images()).imperceptibility
    assert (
        told.accuracy_unmarked
        == standard(
            model, key, replace(options, original=network()), claim=claim, data=images()
        ).imperceptibility.accuracy_unmarked
    )


def test_schemes_that_read_activations_take_a_live_network() -> None:
    own = triggered.marked("deepsigns")
    options = StandardOptions(triggered.fresh("deepsigns"), ["noise", "finetune", "rewrite"])
    report = standard(
        own.model(), own.key, options, claim=own.claim, triggers=own.triggers, data=digits()
    )
    noise = made(report, "Gaussian noise addition")
    assert noise[0.05].detected
    assert noise[1.0].matched < noise[0.05].matched
    again = own.read(attacks_on(own.model(), Noise(1.0)))
    assert noise[1.0].matched == again.matched
    assert sorted(made(report, "fine-tuning")) == [1, 2, 4]
    assert report.modifications[1].why.startswith("not made: the scheme reads activations")
    assert (report.unmarked, report.false_alarms) == (9, 0)
    assert report.imperceptibility.change is None
    assert report.imperceptibility.change_whole
    assert report.cost.step_ratio
    assert report.cost.verify
    assert StandardReport.from_dict(report.to_dict()) == report
    with pytest.raises(LiveModelError):
        standard(dict(load_of(own)), own.key, NOISE, triggers=own.triggers)
    with pytest.raises(TriggerMismatchError):
        standard(own.model(), own.key, NOISE, claim=own.claim)
    with pytest.raises(NoMarkError, match="nothing to attack"):
        standard(
            triggered.fresh("deepsigns"), own.key, NOISE, claim=own.claim, triggers=own.triggers
        )


def attacks_on(model: Any, attack: attacks.Attack) -> Any:
    """The attacked module."""
    given = attacks.LaunchOptions(seed=seed_of(attack, 0))
    return attacks.launch(attack, model, None, given).model


def load_of(own: triggered.Marked) -> dict[str, Any]:
    return {name: value.numpy() for name, value in own.state.items()}


def test_marks_that_cannot_be_attached_say_why() -> None:
    model = network()
    why = costing.step_times(model, Key.new(QUICK), images(), ["nosuch"])
    assert isinstance(why, str)
    assert why.startswith("not measured: ")
    times = costing.step_times(model, key_of(parameters("neuralmark")), images(), [LAYER])
    assert not isinstance(times, str)
    assert min(times) > 0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"only": ["shift"]}, AttackError, "'shift' makes none of the standard's modifications"),
        ({"only": ["noize"]}, UnknownAttackError, "did you mean 'noise'"),
        ({"only": ["finetune"]}, MissingDataError, "none of these modifications .* live module"),
        ({"original": "marked.safetensors"}, DataMismatchError, "carries the mark itself"),
        ({"original": "other.safetensors"}, DataMismatchError, "no tensor 'layer1.weight'"),
    ],
)
def test_bad_requests(
    folder: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    save_file({"layer1.weight": np.ones((4, 4), np.float32)}, folder / "other.safetensors")
    if "original" in options:
        options = {"original": folder / options["original"]}
    with pytest.raises(error, match=words):
        standard(folder / "marked.safetensors", KEY, StandardOptions(jobs=1, **options))


def test_unmarked_models_and_odd_options_are_refused(folder: Path) -> None:
    with pytest.raises(NoMarkError):
        standard(folder / "model.safetensors", KEY, NOISE)
    for odd in ({"jobs": 0}, {"only": "noise"}, {"seed": "x"}):
        with pytest.raises(ParameterError):
            StandardOptions(**odd)
    with pytest.raises(ParameterError):
        standard(folder / "marked.safetensors", KEY, {"only": ["noise"]})  # type: ignore[arg-type]
