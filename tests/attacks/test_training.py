"""Attacks that train: fine-tuning and overwriting on a live model, with data."""

import copy
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neuralmark
from neuralmark import Claim, Key
from neuralmark.attacks import Attack, Data
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.engine.result import Result
from neuralmark.attacks.finetune import Finetune
from neuralmark.attacks.overwrite import Overwrite
from neuralmark.attacks.rewrite import Rewrite
from neuralmark.errors import (
    AttackError,
    DataMismatchError,
    MissingDataError,
    NoMarkError,
    OutputError,
    ParameterError,
    UnknownSchemeError,
)
from tests.support.images import LAYER, data, network
from tests.support.models import QUICK


@pytest.fixture(scope="module")
def marked() -> tuple[nn.Sequential, Key, Claim]:
    model = network()
    key = Key(QUICK, b"", salt=bytes(32), secret=bytes([9]) * 32)
    made = neuralmark.imprint(model, key, tensors=[LAYER], strength=4.0)
    assert made.claim is not None
    return model, key, made.claim


def attacked(marked: tuple[nn.Sequential, Key, Claim], attack: object, given: Data) -> Result:
    model, key, claim = marked
    before = copy.deepcopy(model.state_dict())
    result = launch(attack, model, key, claim=claim, data=given)  # type: ignore[arg-type]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), f"the attack changed its input: {name}"
    return result


def moved(marked: tuple[nn.Sequential, Key, Claim], result: Result) -> set[str]:
    old = marked[0].state_dict()
    assert result.model is not None
    new = result.model.state_dict()
    return {name for name in old if not torch.equal(old[name], new[name])}


def test_fine_tuning_the_marked_layer_touches_only_it_and_the_classifier(
    marked: tuple[nn.Sequential, Key, Claim],
) -> None:
    result = attacked(marked, Finetune(scope="marked", epochs=1), data())
    assert moved(marked, result) == {LAYER, "6.weight", "6.bias"}
    assert result.survived
    assert result.steps == 1
    assert result.accuracy_before is None
    assert result.accuracy_after is not None


def test_fine_tuning_everything_with_a_new_task(marked: tuple[nn.Sequential, Key, Claim]) -> None:
    result = attacked(marked, Finetune(scope="all", epochs=30, rate=0.05, batch=16), data(3))
    assert result.model is not None
    assert result.model[6].out_features == 3  # type: ignore[index]
    assert len(moved(marked, result)) == 6
    assert result.accuracy_after is not None
    assert result.accuracy_after > 0.6
    assert result.survived


def test_keeping_the_classifier_reports_accuracy_before_and_after(
    marked: tuple[nn.Sequential, Key, Claim],
) -> None:
    result = attacked(marked, Finetune(classifier="keep", epochs=1), data())
    assert result.accuracy_before is not None
    assert result.accuracy_after is not None


def test_lora_is_merged_into_the_weights(marked: tuple[nn.Sequential, Key, Claim]) -> None:
    result = attacked(marked, Finetune(scope="lora", epochs=3, rate=0.05, batch=16), data())
    assert result.model is not None
    assert set(result.model.state_dict()) == set(marked[0].state_dict())
    assert LAYER in moved(marked, result)
    assert result.survived


def test_a_ruinous_rate_removes_the_mark_and_the_task(
    marked: tuple[nn.Sequential, Key, Claim],
) -> None:
    weak = attacked(marked, Finetune(rate=0.01, epochs=4, batch=16), data())
    strong = attacked(marked, Finetune(rate=0.3, epochs=40, batch=4), data())
    assert weak.survived
    assert strong.after is not None
    assert strong.change > 3 * weak.change


def test_overwriting_writes_the_attackers_mark(marked: tuple[nn.Sequential, Key, Claim]) -> None:
    result = attacked(marked, Overwrite(300.0, rate=0.01, epochs=15, batch=8), data())
    assert result.figures["attacker_rate"] > 0.95
    assert result.key is not None
    assert result.key.fingerprint != marked[1].fingerprint
    assert result.model is not None
    found = neuralmark.verify(result.model, result.key, tensors=[LAYER])
    assert abs(found.rate - result.figures["attacker_rate"]) < 1e-9


@pytest.mark.parametrize(
    "attack",
    [
        Overwrite(1.0, epochs=1, keys=3),
        Overwrite(1.0, epochs=1, scheme="vanillamark"),
        Overwrite(2.0, epochs=1, mode="projection"),
    ],
)
def test_adaptive_forms(marked: tuple[nn.Sequential, Key, Claim], attack: Overwrite) -> None:
    result = attacked(marked, attack, data())
    assert result.variant
    assert 0 <= result.figures["attacker_rate"] <= 1
    if attack.mode == "projection":
        assert result.figures["attacker_rate"] == 1.0


def test_runs_are_repeated_by_their_seed(marked: tuple[nn.Sequential, Key, Claim]) -> None:
    attack = Overwrite(10.0, epochs=2, batch=16)
    one, two = (attacked(marked, attack, data()) for _ in range(2))
    other = launch(
        attack, marked[0], marked[1], options=LaunchOptions(seed=1), claim=marked[2], data=data()
    )
    assert one.change == two.change
    assert one.change != other.change


def test_rewriting_leaves_both_marks(marked: tuple[nn.Sequential, Key, Claim]) -> None:
    result = attacked(marked, Rewrite(2.0), data())
    assert result.survived
    assert result.figures["attacker_rate"] == 1.0
    many = attacked(marked, Rewrite(2.0, keys=4), data())
    assert many.change > result.change
    with pytest.raises(AttackError, match="post hoc"):
        attacked(marked, Rewrite(scheme="greedymark"), data())


def test_what_does_not_fit_is_named(marked: tuple[nn.Sequential, Key, Claim]) -> None:
    model, key, claim = marked
    flat = Data(*(torch.zeros(4, 5), torch.zeros(4, dtype=torch.long)) * 2)
    with pytest.raises(DataMismatchError, match="does not fit"):
        launch(Finetune(), model, key, claim=claim, data=flat)
    many = replace(data(), labels=data().labels + 9)
    with pytest.raises(DataMismatchError, match="13 classes"):
        launch(Finetune(classifier="keep"), model, key, claim=claim, data=many)
    with pytest.raises(MissingDataError, match="needs data"):
        launch(Finetune(), model, key, claim=claim)
    with pytest.raises(MissingDataError, match="live torch module"):
        launch(Finetune(), {"w": model.get_parameter(LAYER).detach().numpy()})
    with pytest.raises(NoMarkError, match="does not carry"):
        launch(Finetune(), network(), key, claim=claim, data=data())
    slip: Any = "lor"
    with pytest.raises(ParameterError, match="did you mean 'lora'"):
        Finetune(scope=slip)
    with pytest.raises(UnknownSchemeError):
        launch(Overwrite(scheme="vanila"), model, key, claim=claim, data=data())
    with pytest.raises(AttackError, match="linear layer"):
        launch(Finetune(), nn.Sequential(nn.Conv2d(3, 4, 3)), data=data())


class Interrupted(Exception):
    """What stops an attack on its way."""


@dataclass
class Watch:
    """Counts the steps of an attack; stops it after so many."""

    stop: int = 0
    steps: list[int] = field(default_factory=list)

    def __call__(self, what: str, done: int, total: int) -> None:
        self.steps.append(done)
        if done == self.stop:
            raise Interrupted


def normed() -> nn.Sequential:
    """Like `network`, with what else has a state or is random in training."""
    torch.manual_seed(3)
    plain = list(network())
    return nn.Sequential(*plain[:3], nn.BatchNorm2d(128), nn.Dropout(0.3), *plain[3:])


def weights_of(result: Result) -> dict[str, torch.Tensor]:
    assert result.model is not None
    return dict(result.model.state_dict())


def same(one: Result, two: Result) -> bool:
    old, new = weights_of(one), weights_of(two)
    weights = old.keys() == new.keys() and all(torch.equal(old[n], new[n]) for n in old)
    keys = (one.key is None) == (two.key is None)
    if one.key is not None and two.key is not None:
        keys = one.key.fingerprint == two.key.fingerprint
    return weights and keys and one.figures == two.figures and one.steps == two.steps


RESUMING = [
    Finetune(rate=0.05, epochs=3, batch=16),
    Finetune(rate=0.05, epochs=3, batch=16, scope="marked", classifier="keep"),
    Finetune(rate=0.05, epochs=3, batch=16, scope="lora"),
    Overwrite(100.0, rate=0.05, epochs=3, batch=16, keys=2),
    Overwrite(10.0, rate=0.05, epochs=3, batch=16, scheme="greedymark"),
    Overwrite(10.0, rate=0.05, epochs=3, batch=16, scheme="votemark"),
    Overwrite(2.0, rate=0.05, epochs=3, batch=16, keys=2, mode="projection"),
]


@pytest.mark.parametrize("attack", RESUMING, ids=lambda attack: attack.variant)
def test_an_interrupted_attack_goes_on_from_its_last_epoch(
    attack: Finetune | Overwrite, tmp_path: Path
) -> None:
    model, keep = normed(), tmp_path / "state.pt"
    whole = launch(attack, model, options=LaunchOptions(tensors=[LAYER]), data=data())
    with pytest.raises(Interrupted):
        launch(
            attack,
            model,
            options=LaunchOptions(tensors=[LAYER], keep=keep),
            data=data(),
            progress=Watch(stop=6),
        )
    rest = Watch()
    resumed = launch(
        attack, model, options=LaunchOptions(tensors=[LAYER], keep=keep), data=data(), progress=rest
    )
    assert rest.steps == [5, 6, 7, 8, 9, 10, 11, 12]
    assert same(resumed, whole)
    assert 0 < resumed.earlier < resumed.seconds
    assert whole.earlier == 0
    assert list(tmp_path.iterdir()) == [keep]
    nothing = Watch()
    again = launch(
        attack,
        model,
        options=LaunchOptions(tensors=[LAYER], keep=keep),
        data=data(),
        progress=nothing,
    )
    assert same(again, whole)
    assert nothing.steps == []


SHORT = Overwrite(10.0, rate=0.05, epochs=2, batch=16)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an attack left that was interrupted in its second epoch."""
    keep = tmp_path_factory.mktemp("kept") / "state.pt"
    with pytest.raises(Interrupted):
        launch(
            SHORT, normed(), options=LaunchOptions(keep=keep), data=data(), progress=Watch(stop=6)
        )
    return keep


def begun_again(
    keep: Path,
    attack: Attack = SHORT,
    model: nn.Module | None = None,
    given: Data | None = None,
    seed: int = 0,
) -> bool:
    """Whether an attack does all its steps, and ends as one that keeps nothing."""
    model, given, watch = model or normed(), given or data(), Watch()
    options = LaunchOptions(seed=seed, keep=keep)
    found = launch(attack, model, options=options, data=given, progress=watch)
    assert same(found, launch(attack, model, options=LaunchOptions(seed=seed), data=given))
    return watch.steps == list(range(1, 9)) and found.earlier == 0


def test_what_was_kept_by_another_attack_is_not_taken(kept: Path, tmp_path: Path) -> None:
    def copied() -> Path:
        return Path(shutil.copy(kept, tmp_path / "state.pt"))

    other_data = replace(data(), labels=data().labels.flip(0))
    other_model = normed()
    other_model[4] = nn.Dropout(0.2)
    assert not begun_again(copied())
    assert begun_again(copied(), seed=1)
    assert begun_again(copied(), Overwrite(11.0, rate=0.05, epochs=2, batch=16))
    assert begun_again(copied(), Overwrite(10.0, rate=0.04, epochs=2, batch=16))
    assert begun_again(copied(), Finetune(rate=0.05, epochs=2, batch=16))
    assert begun_again(copied(), given=other_data)
    assert begun_again(copied(), model=other_model)


def test_a_damaged_file_is_as_good_as_none(kept: Path, tmp_path: Path) -> None:
    keep, sound = tmp_path / "state.pt", kept.read_bytes()
    torn = bytearray(sound)
    torn[len(torn) // 2] ^= 1
    for damaged in (b"", b"nonsense", sound[: len(sound) // 2], bytes(torn)):
        keep.write_bytes(damaged)
        assert begun_again(keep)
    torch.save([1, 2], keep)
    assert begun_again(keep)


def test_where_nothing_can_be_kept_is_said_at_once(tmp_path: Path) -> None:
    for keep, why in ((tmp_path / "no" / "state.pt", "create it"), (tmp_path, "is a folder")):
        watch = Watch()
        with pytest.raises(OutputError, match=why):
            launch(SHORT, normed(), options=LaunchOptions(keep=keep), data=data(), progress=watch)
        assert watch.steps == []


@pytest.mark.parametrize(
    "attack", [Finetune(rate=100.0, epochs=40), Overwrite(weight=1e30, rate=100.0, epochs=40)]
)
def test_a_model_driven_to_nan_carries_nothing(
    marked: tuple[nn.Sequential, Key, Claim], attack: Any
) -> None:
    """The attacker broke it: a result, not an error."""
    result = attacked(marked, attack, data())
    assert (result.after, result.survived) == (None, False)
    assert "NaN" in result.unreadable
    assert result.to_dict()["change"] is None
    assert result.accuracy_after is not None
    assert result.accuracy_after < 0.5
    assert not result.figures
