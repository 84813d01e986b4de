"""Specifications: frozen, hashed, read back as they were."""

import json
from dataclasses import replace

import pytest

from neuralmark.errors import ParameterError
from neuralmark.lab.plan.spec import (
    Assault,
    MarkingSpec,
    Probe,
    Spec,
    Training,
    from_dict,
    identity,
    in_order,
    settings,
    to_dict,
)

CLEAN = Training("digits", "digits", epochs=2, rate=0.1, batch=32)
MARKED = replace(CLEAN, mark=MarkingSpec(strength=2.0, own=settings(filter="hashed")))
ATTACK = Assault(MARKED, "prune", settings(share=0.5, how="random"), tensors=("conv2.weight",))
PROBE = Probe("overlap", settings(weights=1000, keys=5, rounds=2))


@pytest.mark.parametrize("spec", [CLEAN, MARKED, ATTACK, PROBE], ids=lambda s: s.label)
def test_specifications_go_through_json(spec: Spec) -> None:
    again = from_dict(json.loads(json.dumps(to_dict(spec))))
    assert again == spec
    assert identity(again) == identity(spec)


def test_everything_that_shapes_the_numbers_shapes_the_name() -> None:
    others: list[Spec] = [
        replace(CLEAN, epochs=3),
        replace(CLEAN, rate=0.2),
        replace(CLEAN, batch=33),
        replace(CLEAN, seed=1),
        replace(CLEAN, images=100),
        replace(CLEAN, options=settings(stride=2)),
        replace(CLEAN, tensors=("a",)),
        MARKED,
        replace(CLEAN, mark=MarkingSpec(strength=3.0)),
        ATTACK,
        replace(ATTACK, settings=settings(share=0.6, how="random")),
        PROBE,
    ]
    names = {identity(spec) for spec in [CLEAN, *others]}
    assert len(names) == len(others) + 1


def test_what_a_run_needs_comes_first_and_once() -> None:
    ordered = in_order([ATTACK, PROBE, MARKED, ATTACK])
    assert ordered == [MARKED, ATTACK, PROBE]


def test_another_version_or_kind_is_refused() -> None:
    with pytest.raises(ParameterError, match="version"):
        from_dict({**to_dict(PROBE), "lab": 99})
    with pytest.raises(ParameterError, match="kind"):
        from_dict({**to_dict(PROBE), "kind": "dream"})
    with pytest.raises(ParameterError, match="'colour'"):
        from_dict({**to_dict(PROBE), "colour": 1})
