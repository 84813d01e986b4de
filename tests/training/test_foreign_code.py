"""A suspect's own code at the triggers: whatever it raises, and whatever is asked of it in vain."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import neuralmark
from neuralmark import AttachOptions, Key, VerifyOptions, recheck, verify
from neuralmark.errors import (
    ModelCodeError,
    NonFiniteError,
    ParameterError,
    TriggerMismatchError,
    UnsuitableTensorError,
)
from neuralmark.structures import traced_structure
from tests.support.checks import one_line
from tests.support.failing import RAISED, Failing
from tests.support.images import LAYER, network
from tests.support.models import QUICK
from tests.support.triggered import fresh, marked

PLAIN = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)


def given() -> dict[str, Any]:
    made = marked("deepsigns")
    return {"key": made.key, "tensors": ["3"], "triggers": made.triggers}


def attached(model: nn.Module, **more: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    known = {"tensors": ["3"], "triggers": marked("deepsigns").triggers, **more}
    return neuralmark.attach(model, optimizer, marked("deepsigns").key, AttachOptions(**known))


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_whatever_a_network_raises_at_triggers_has_a_name(error: Exception) -> None:
    for look in (verify, attached):
        model = Failing(fresh("deepsigns"), error)
        with pytest.raises(TriggerMismatchError, match="does not take these triggers") as caught:
            look(model, **(given() if look is verify else {}))
        assert type(error).__name__ in one_line(caught.value)
        assert "".join(str(error).splitlines()[:1]) in str(caught.value)


def test_an_assertion_on_the_size_of_images_is_told() -> None:
    class Sized(nn.Sequential):
        def forward(self, images: torch.Tensor) -> Any:
            torch._assert(images.shape[-1] == 224, "Wrong image width!")
            return self[-1](images)

    with pytest.raises(TriggerMismatchError, match=r"\(AssertionError: Wrong image width!\)"):
        verify(Sized(*fresh("deepsigns")), **given())


def test_our_own_errors_pass_through() -> None:
    model = Failing(fresh("deepsigns"), NonFiniteError("as it was"))
    with pytest.raises(NonFiniteError, match=r"^as it was$"):
        verify(model, **given())
    with pytest.raises(MemoryError):
        verify(Failing(fresh("deepsigns"), MemoryError()), **given())


@pytest.mark.parametrize("ended", [0, None, 3, "bye\nbye"])
def test_a_network_that_ends_the_program_is_named(ended: Any) -> None:
    for look, more in ((verify, given()), (attached, {})):
        model = Failing(fresh("deepsigns"), SystemExit(ended))
        with pytest.raises(ModelCodeError, match=r"ended the program \(sys\.exit\(") as caught:
            look(model, **more)
        one_line(caught.value)


def test_a_graph_that_cannot_be_traced_is_none() -> None:
    for error in (*RAISED, SystemExit(0)):
        model = Failing(fresh("deepsigns"), error)
        weights = {name: value.numpy() for name, value in model.state_dict().items()}
        assert traced_structure(weights, model) is None


def test_a_parametrization_that_fails_is_named() -> None:
    class Odd(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            raise KeyError("no")

    model = network()
    layer = model.get_submodule(LAYER.rpartition(".")[0])
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", Odd(), unsafe=True)
    with pytest.raises(UnsuitableTensorError, match="KeyError: 'no'"):
        verify(model, PLAIN)


def test_the_meta_device_is_named() -> None:
    made = marked("deepsigns")
    for look, more in ((verify, given()), (attached, {})):
        with pytest.raises(UnsuitableTensorError, match="meta device"):
            look(made.model().to("meta"), **more)
    half = made.model()
    half[5].to("meta")
    with pytest.raises(UnsuitableTensorError, match=r"5\.weight.* meta device"):
        verify(half, **given())


# Options that mean nothing at triggers.

OPTIONS: dict[str, Any] = {
    "anchor": "nothere",
    "effort": 0.5,
    "align_limit": 7,
    "base": "nothere",
    "example": (1, 7),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_for_weights_are_refused_at_triggers(name: str) -> None:
    made = marked("deepsigns")
    options = VerifyOptions(**{name: OPTIONS[name]})
    words = rf"deepsigns .*activations.*: leave VerifyOptions\({name}=\.\.\.\) out"
    with pytest.raises(ParameterError, match=words) as caught:
        verify(made.model(), options=options, **given())
    one_line(caught.value)
    verdict = made.read(made.model())
    with pytest.raises(ParameterError, match=words):
        recheck(verdict, made.model(), made.key, options=options, triggers=made.triggers)


def test_several_of_them_are_told_at_once() -> None:
    made = marked("deepsigns")
    options = VerifyOptions(anchor="a", example=np.zeros((1, 7)))
    words = r"leave VerifyOptions\(anchor=\.\.\.\) and VerifyOptions\(example=\.\.\.\) out"
    with pytest.raises(ParameterError, match=words):
        verify(made.model(), options=options, **given())


def test_a_look_among_many_counts_them_all() -> None:
    made = marked("deepsigns")
    alone = verify(made.model(), **given())
    options = VerifyOptions(among=1 << 40)
    verdict = verify(made.model(), options=options, **given())
    assert (alone.trials, verdict.trials) == (1, 1 << 40)
    assert verdict.bound_log2 == pytest.approx(alone.bound_log2 + 40)
    again = recheck(verdict, made.model(), made.key, triggers=made.triggers, options=options)
    assert again.holds, again
    beyond = verify(made.model(), options=replace(options, among=1 << 60), **given())
    assert beyond.status == "unprovable"


@pytest.mark.parametrize(
    "more", [{"triggers": "nothere.triggers"}, {"augment": abs}, {"triggers": "a", "augment": abs}]
)
def test_attaching_to_weights_takes_no_triggers(more: dict[str, Any]) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    names = " and ".join(rf"{name}=\.\.\." for name in more)
    with pytest.raises(TriggerMismatchError, match=rf"reads weights .*leave {names} out") as caught:
        neuralmark.attach(model, optimizer, PLAIN, AttachOptions(tensors=[LAYER], **more))
    one_line(caught.value)


def test_attaching_at_triggers_takes_no_lora_delta() -> None:
    with pytest.raises(ParameterError, match="target"):
        attached(fresh("deepsigns"), target="lora-delta")
