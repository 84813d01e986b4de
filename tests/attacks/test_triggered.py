"""Attacks on marks in activations: judged live at the triggers, before and after; and forging."""

from typing import Any

import numpy as np
import pytest
import torch

import neuralmark
from neuralmark import Key, attacks
from neuralmark.attacks import LaunchOptions, SuiteOptions
from neuralmark.errors import (
    AttackError,
    LiveModelError,
    NoMarkError,
    ParameterError,
    TriggerMismatchError,
)
from tests.support.learnt import digits
from tests.support.triggered import LAYER, TRIGGERED, fresh, marked


def launched(*given: Any, **named: Any) -> Any:
    """A result of which all that a test looks at is there."""
    return attacks.launch(*given, **named)


def attack_of(name: str, **settings: Any) -> attacks.Attack:
    return attacks.get(name)(**settings)


@pytest.mark.parametrize("name", TRIGGERED)
def test_an_attack_is_judged_at_the_triggers(name: str) -> None:
    made = marked(name)
    model = made.model()
    given: dict[str, Any] = {"claim": made.claim, "triggers": made.triggers}
    slight = launched(attack_of("noise", amount=0.01), model, made.key, **given)
    assert (slight.survived, slight.before.matched, slight.after.status) == (True, 160, "verified")
    assert slight.after.trigger_digest == made.triggers.digest.hex()
    heavy = launched(attack_of("noise", amount=5.0), model, made.key, **given)
    assert not heavy.survived
    assert not heavy.held
    assert made.read(model).matched == 160


def test_a_rebuilt_network_loses_the_mark_or_its_layer() -> None:
    made = marked("featuremap")
    data = digits()
    options: dict[str, Any] = {"claim": made.claim, "triggers": made.triggers}
    attack = attack_of("restructure")
    result = launched(attack, made.model(), made.key, data=data, **options)
    assert not result.survived
    assert result.after is not None or result.unreadable


def test_the_suite_runs_on_a_live_module() -> None:
    made = marked("deepsigns")
    options = SuiteOptions(only=["noise", "shrink", "forge-triggers"])
    given: dict[str, Any] = {"claim": made.claim, "triggers": made.triggers, "data": digits()}
    card = attacks.suite(made.model(), made.key, options, **given)
    assert {row.attack for row in card.rows} == {"noise", "shrink", "forge-triggers"}
    assert card.before.scheme == "deepsigns"
    assert all(row.flipped is None for row in card.forgeries)


def test_what_does_not_fit_is_named() -> None:
    made = marked("deepsigns")
    model, noise = made.model(), attack_of("noise")
    with pytest.raises(TriggerMismatchError, match="none are given"):
        launched(noise, model, made.key, claim=made.claim)
    table = {name: value.numpy() for name, value in made.state.items()}
    with pytest.raises(LiveModelError, match="the live module in the place of the file"):
        launched(noise, table, made.key, claim=made.claim, triggers=made.triggers)
    others = fresh("deepsigns")
    with pytest.raises(NoMarkError, match="give the model that the mark was trained in"):
        launched(noise, others, made.key, claim=made.claim, triggers=made.triggers)
    with pytest.raises(ParameterError, match="an anchor is of weights"):
        launched(
            noise,
            model,
            made.key,
            LaunchOptions(anchor="a.anchor"),
            claim=made.claim,
            triggers=made.triggers,
        )
    with pytest.raises(TriggerMismatchError, match=r"leave triggers=\.\.\. out"):
        launched(noise, model, Key.new(), triggers=made.triggers)
    with pytest.raises(TriggerMismatchError, match=r"leave triggers=\.\.\. out"):
        attacks.suite(model, Key.new(), triggers=made.triggers)


@pytest.mark.parametrize("name", TRIGGERED)
def test_free_triggers_and_matrix_match_and_prove_nothing(name: str) -> None:
    victim = fresh(name).eval()
    forger = attack_of("forge-triggers", scheme=name, layer=LAYER[name])
    result = launched(forger, victim, data=digits())
    assert (result.after.matched, result.after.status) == (160, "matches-unproven")
    assert result.held
    assert result.after.to_dict()["bound_holds"] is False
    assert result.to_dict()["after"]["bound_holds"] is False
    again = neuralmark.verify(victim, result.key, tensors=[LAYER[name]], triggers=result.triggers)
    assert again.matched == 160
    native = attack_of("forge-triggers", scheme=name, layer=LAYER[name], against="native")
    result = launched(native, victim, data=digits())
    assert 0.55 < result.after.rate < 0.75  # the best of 200 draws
    assert result.after.status == "not-verified"


def test_the_layer_is_chosen_where_none_is_named() -> None:
    for name in TRIGGERED:
        result = launched(
            attack_of("forge-triggers", scheme=name), fresh(name).eval(), data=digits()
        )
        assert result.after.matched == result.after.bits
    with pytest.raises(AttackError, match="no layer of this model can be read by lim"):
        launched(
            attack_of("forge-triggers", scheme="lim"), fresh("deepsigns").eval(), data=digits()
        )


def test_the_signs_of_a_memory_are_called_ones_own() -> None:
    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory, self.last = neuralmark.KeyedMemory(8, 160), torch.nn.Linear(160, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            said: torch.Tensor = self.last(self.memory(images[:, 0])[:, -1])
            return said

    result = launched(attack_of("forge-triggers", scheme="lim"), Rows(), data=digits())
    assert (result.after.matched, result.after.status) == (160, "matches-unproven")


def test_a_matrix_that_groups_share_is_to_be_repeated() -> None:
    made = marked("featuremap")
    matrix = np.random.default_rng(0).standard_normal((512, 32)).astype(np.float32)
    raw = Key.chosen(made.key.parameters, matrix, bits=np.ones(160, np.uint8))
    given: dict[str, Any] = {"tensors": ["conv2"], "triggers": made.triggers}
    with pytest.raises(TriggerMismatchError, match=r"32 columns.*numpy.tile\(matrix, 5\)"):
        neuralmark.verify(made.model(), raw, **given)
    tiled = Key.chosen(made.key.parameters, np.tile(matrix, 5), bits=np.ones(160, np.uint8))
    assert neuralmark.verify(made.model(), tiled, **given).bits == 160
