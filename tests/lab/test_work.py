"""Keys of runs, and what a row says of the weights."""

from functools import partial

import pytest
import torch

from neuralmark import zoo
from neuralmark.errors import TooFewCarriersError
from neuralmark.keys.key import Key
from neuralmark.lab.execution.training import TrainingCourse, accuracy, train
from neuralmark.lab.execution.work import BINS, _distribution
from neuralmark.lab.plan.keys import DRAWS, _drawn, fitting, key_for
from neuralmark.lab.plan.spec import MarkingSpec, Training

SPEC = Training("digits", "digits", 1, 0.1, 8, mark=MarkingSpec(bits=256, pools=600, rounds=4))


def fits(key: Key, size: int) -> bool:
    try:
        fitting((("w", (size,)),), key)
    except TooFewCarriersError:
        return False
    return True


def test_a_key_that_does_not_fit_is_drawn_again() -> None:
    keys = [_drawn(SPEC, draw) for draw in range(DRAWS)]
    sizes = range(600 * 2**3, 600 * 2**5, 100)
    size = next(n for n in sizes if not fits(keys[0], n) and any(fits(key, n) for key in keys))
    chosen = key_for(SPEC, partial(fitting, (("w", (size,)),)))
    first = next(key for key in keys if fits(key, size))
    assert chosen.secret == first.secret != keys[0].secret


def test_a_layer_too_small_for_any_key_is_refused() -> None:
    with pytest.raises(TooFewCarriersError):
        key_for(SPEC, partial(fitting, (("w", (100,)),)))


def test_the_distribution_counts_stored_weights_only() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(30, 40))
    found = _distribution(model, ("0.weight", "0.lora_delta"))
    assert found is not None
    assert len(found["counts"]) == BINS
    assert sum(found["counts"]) == 30 * 40
    assert _distribution(model, ("0.lora_delta",)) is None


@pytest.mark.parametrize(("tests", "tested"), [(32, [True, True]), (64, [False, True])])
def test_a_test_longer_than_an_epoch_is_made_at_the_end(tests: int, tested: list[bool]) -> None:
    torch.manual_seed(0)
    data = zoo.data("digits", limit=32, test_limit=tests)
    model = zoo.architecture("digits").build(classes=data.classes)
    row = train(model, data, TrainingCourse(2, 0.1, 8), None, None, lambda done, total: None).row
    assert ["accuracy" in epoch for epoch in row["history"]] == tested
    assert row["accuracy"] == accuracy(model, data)
