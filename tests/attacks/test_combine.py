"""One attack after the other: what a step may be, and that each sees what the last one left."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuralmark import Key, attacks, imprint
from neuralmark.attacks.adapt import Adapt
from neuralmark.attacks.combine import Combine
from neuralmark.attacks.contract import Data
from neuralmark.attacks.engine import suite
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions, SuiteOptions
from neuralmark.attacks.engine.subject import subject_of
from neuralmark.attacks.noise import Noise
from neuralmark.attacks.prune import Prune
from neuralmark.attacks.quantize import Quantize
from neuralmark.attacks.restructure import Restructure
from neuralmark.errors import AttackError, MissingDataError, ParameterError, UnknownAttackError
from tests.support.models import QUICK, gaussian

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support import architectures as models  # noqa: E402
from tests.support.images import data  # noqa: E402


def outputs(model: Any, inputs: Any) -> Any:
    with torch.no_grad():
        made = model.eval()(inputs)
    return getattr(made, "logits", made)


def test_steps_are_names_and_settings() -> None:
    text = "restructure all 8  +  noise 0.3 + quantize int4 group=0 + prune how=random share=0.2"
    attack = Combine(text)
    assert attack.parts == (
        Restructure("all", 8),
        Noise(0.3),
        Quantize("int4", 0),
        Prune(0.2, "random"),
    )
    assert attack.variant == " ".join(text.split())
    assert Combine("narrow 0.5 no").parts[0].settings()["compensate"] is False
    assert Combine("finetune epochs=1e1 rate=1e-3").parts[0].settings()["epochs"] == 10


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("", "joined by"),
        ("noise + ", "joined by"),
        ("+ noise", "joined by"),
        ("noise + + shift", "joined by"),
        ("noise 0.1 0.2", "one too many"),
        ("noise 0.1 amount=0.2", "one too many"),
        ("noise size=0.2", "amount"),
        ("noise much", "must be a number"),
        ("noise -1", "amount must be"),
        ("narrow 0.5 perhaps", "True or False"),
        ("forge-random", "cannot be a step"),
        ("detect", "cannot be a step"),
        ("combine", "cannot be a step"),
    ],
)
def test_what_is_no_step_is_refused(steps: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Combine(steps)


def test_a_misspelt_step_suggests_the_near_one() -> None:
    with pytest.raises(UnknownAttackError, match="did you mean 'noise'"):
        Combine("nois 0.1")


def test_it_does_what_its_steps_do_in_turn() -> None:
    table = {f"{i}.weight": gaussian(32, 32, seed=i) for i in (0, 2, 4)}
    both = launch(Combine("prune 0.5 + shrink 0.5"), table).weights
    assert both is not None
    for name, value in table.items():
        small = np.argsort(np.abs(value), axis=None)[: value.size // 2]
        expected = (value * np.float32(0.5)).reshape(-1)
        expected[small] = 0
        assert np.array_equal(both[name].reshape(-1), expected)
    assert all((value != 0).all() for value in table.values())


def test_tensors_under_new_names_are_attacked_too() -> None:
    table = {f"{i}.weight": gaussian(32, 32, seed=i) for i in (0, 2, 4)}
    renamed = launch(Combine("convert rename + prune 0.5"), table).weights
    assert renamed is not None
    assert len(renamed) == 3
    assert not set(renamed) & set(table)
    assert all((value == 0).mean() == 0.5 for value in renamed.values())
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3)))
    result = launch(Combine("restructure permute + convert factor + noise 0.1"), model)
    assert result.model is None  # no module of this kind holds it
    assert result.weights is not None
    assert len(result.weights) > 6


def test_costs_notes_and_figures_are_gathered() -> None:
    table = {f"{i}.weight": gaussian(32, 32, seed=i) for i in (0, 2, 4)}
    result = launch(Combine("prune 0.5 + restructure permute"), table)
    assert result.figures["prune zeros"] == 0.5
    assert result.figures["restructure groups"] == 2
    assert "restructure: Sequential" in result.note


@pytest.mark.parametrize("make", [models.gpt2, models.llama])
def test_rebuilding_several_times_keeps_the_function(make: Any) -> None:
    model, given = make(), models.tokens(40)
    labels = torch.zeros(40, dtype=torch.long)
    steps = (
        "restructure vocabulary + restructure split 3 + restructure all 2 + restructure equalise"
    )
    result = launch(Combine(steps), model, data=Data(given, labels, given, labels))
    before, after = outputs(model, given), outputs(result.model, given)
    assert float((after - before).abs().max()) < 1e-3 * float(before.abs().max())


def test_the_judge_compares_outputs_of_what_keeps_the_function_only() -> None:
    model: Any = models.lived_in(models.CifarResNet())
    given, labels = models.images(40), torch.zeros(40, dtype=torch.long)
    some = Data(given, labels, given, labels)
    launch(Combine("restructure flip + noise 0.5"), model, data=some)
    model.layer1[0].bn1.forward = lambda x: x * x
    with pytest.raises(AttackError, match="outputs differ"):
        launch(Combine("restructure permute + restructure rescale"), model, data=some)


def test_what_a_step_needs_is_asked_for() -> None:
    table = {f"{i}.weight": gaussian(8, 8, seed=i) for i in (0, 2, 4)}
    with pytest.raises(MissingDataError, match="finetune"):
        launch(Combine("noise 0.1 + finetune"), table)
    with pytest.raises(MissingDataError, match="subtract"):
        launch(Combine("subtract + noise 0.1"), table)


def test_training_goes_on_from_what_was_rebuilt(tmp_path: Path) -> None:
    model = models.lived_in(torch.nn.Sequential(torch.nn.Flatten(), *_mlp()))
    some = data()
    attack = Combine("restructure split 2 + finetune 0.01 1 classifier=keep")
    result = launch(attack, model, data=some, options=LaunchOptions(keep=tmp_path / "kept"))
    assert result.steps == -(-len(some.inputs) // 64)
    assert isinstance(result.model, torch.nn.Sequential)
    assert result.model[1].weight.shape[0] == 34
    assert result.accuracy_before is not None
    assert result.accuracy_after is not None
    again = launch(attack, model, data=some, options=LaunchOptions(keep=tmp_path / "kept"))
    assert isinstance(again.model, torch.nn.Sequential)
    assert torch.equal(again.model[1].weight, result.model[1].weight)
    renewed = launch(Combine("finetune 0.01 1 + noise 0.1"), model, data=some)
    assert renewed.accuracy_before is None


def _mlp() -> tuple[Any, ...]:
    pixels = data().inputs[0].numel()
    return torch.nn.Linear(pixels, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)


def test_the_suite_runs_what_it_can() -> None:
    members, skipped = suite.enlist(["combine"], others=False)
    assert len(members) == 7
    assert {each.variant for each in skipped} == {
        "finetune + restructure all 8",
        "restructure all 8 + finetune",
    }
    plain, _ = suite.enlist(["combine", "finetune"], others=False, data=True)
    hungry, none = suite.enlist(["combine", "finetune"], others=False, data=True, hungry=True)
    assert len(plain) == 7
    assert {attacks.name_of(each) for each in hungry} == {"combine", "finetune"}
    assert sum(isinstance(each, Combine) for each in hungry) == 2
    assert none == []


def test_combinations_on_a_card() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(128, 128, bias=False) for _ in range(5)))
    key = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)
    claim = imprint(model, key, tensors=["2.weight"], strength=1.0).claim
    card = attacks.suite(model, key, SuiteOptions(only=["combine"], jobs=1), claim=claim)
    assert len(card.rows) == 7
    assert all(row.points[0].status == "unreadable" for row in card.rows)  # other shapes


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda: models.lived_in(models.CifarResNet()), models.images),
        (lambda: models.lived_in(models.VisionResNet(bottleneck=True)), models.images),
        (lambda: models.lived_in(models.Vgg(norm=True)), models.images),
        (models.gpt2, models.tokens),
        (models.llama, models.tokens),
        (lambda: models.llama(tied=True), models.tokens),
    ],
)
def test_the_adaptive_attacker_runs_on_every_family(make: Any, inputs: Any) -> None:
    model, given = make(), inputs()
    before = outputs(model, given)
    mild, wild = (
        outputs(launch(Adapt(amount, flatten, flatten), model).model, given)
        for amount, flatten in ((0.0, 0.0), (0.5, 1.0))
    )
    scale = max(1.0, float(before.abs().max()))
    assert float((mild - before).abs().max()) < 1e-3 * scale  # nothing but rebuilding
    assert float((wild - before).abs().max()) > 1e-2 * scale


def test_profiles_are_equal_where_they_are_flattened() -> None:
    from neuralmark.attacks.tools.equalising import blend, flatten

    rng = np.random.default_rng(0)
    w = (rng.standard_normal((24, 16, 3, 3)) ** 3).astype(np.float32)
    same = flatten(w, 0.0)
    assert np.allclose(same, w, atol=1e-5)

    def spread(values: Any) -> float:
        columns = np.sort(np.abs(values), axis=0)
        columns = columns / np.sqrt(np.square(values).mean(axis=(0, 2, 3), keepdims=True))
        return float(columns.std(axis=1).mean())

    flat = flatten(w, 1.0)
    assert spread(flat) < 1e-5 < 0.1 * spread(w)
    assert np.array_equal(np.sign(flat), np.sign(w))
    half = flatten(w, 0.5)
    assert np.linalg.norm(half - w) < np.linalg.norm(flat - w)
    mixed = blend(w, rng, 0.5)
    rows = [each.reshape(24, -1) for each in (w, mixed)]
    alike = [np.abs(np.corrcoef(each) - np.eye(24)).max() for each in rows]
    assert alike[1] > 0.5 > alike[0]
    assert np.linalg.norm(mixed - w) < 0.5 * np.linalg.norm(w)


def test_removed_channels_are_told() -> None:
    table = dict(subject_of(models.lived_in(models.CifarResNet())).weights)
    result = launch(Adapt(0.0, narrow=0.25, copies=0), table)
    assert result.figures["removed"] == 3 * (4 + 8 + 16)
    assert result.weights is not None
    assert result.weights["layer3.1.conv1.weight"].shape == (48, 64, 3, 3)
