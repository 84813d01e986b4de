"""Small trained models with marks: rebuilt, fused, and put back in order."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import numpy as np

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.anchors.restoring import restore
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.restructure import Restructure
from neuralmark.records.alignment import Alignment
from tests.support import rebuilt as digits
from tests.support.anchored import Table, anchor_of, arrays, converted
from tests.support.marks import marked_with, matching_bits, some_key
from tests.support.speaking import trained

KEY = some_key()
NEARLY_ALL = KEY.parameters.bits - 3
LAYER = re.compile(r".*\.\d+\.")
HEADS = 8
GATE = "model.layers.{}.mlp.gate_proj.weight"
UP = "model.layers.{}.mlp.up_proj.weight"


@cache
def case(name: str) -> tuple[Anchor, Table]:
    """The anchor of a trained model, and the model with a mark bound to it."""
    weights = arrays(trained(name))
    chosen = tuple((n, v.shape) for n, v in weights.items() if v.ndim == 2 and LAYER.match(n))
    anchor = build(OriginalArrays(weights), AnchorRecipe(chosen, HEADS))
    return anchor, marked_with(weights, anchor, KEY, 1.5)


def rebuilt(table: Mapping[str, Any], how: str) -> Table:
    if how == "channels":
        return channels_permuted(table)
    attack = Restructure(cast("Any", how), 3.0 if how == "all" else 1.0, HEADS)
    made = launch(attack, table).weights
    assert made is not None
    return dict(made)


def channels_permuted(table: Mapping[str, Any]) -> Table:
    """The channels of the MLPs in another order, and nothing else."""
    made, rng = dict(table), np.random.default_rng(5)
    for name in table:
        if name.endswith("down_proj.weight"):
            order = rng.permutation(table[name].shape[1])
            made[name] = table[name][:, order]
            for part in ("gate_proj", "up_proj"):
                other = name.replace("down_proj", part)
                made[other] = table[other][order]
    return made


def fused(table: Mapping[str, Any], *hows: str) -> Table:
    made = dict(table)
    for how in hows:
        made = up_before_gate(made) if how == "up-gate" else converted(made, how, heads=HEADS)
    return made


def up_before_gate(table: Mapping[str, Any]) -> Table:
    """Ups, then gates, in one tensor."""
    made = {n: v for n, v in table.items() if "up_proj" not in n and "gate_proj" not in n}
    for name, value in table.items():
        if "gate_proj" in name:
            both = [table[name.replace("gate_proj", "up_proj")], value]
            made[name.replace("gate_proj", "up_gate")] = np.concatenate(both)
    return made


def restored(suspect: Table, anchor: Anchor) -> tuple[Alignment, int]:
    """What became of the tensors, and how many bits are read."""
    restoration = restore(TableWeights(suspect), anchor)
    values = {
        entry.name: each.fill if each.kept is None else each.fill + each.kept
        for entry, each in restoration.tensors()
    }
    return restoration.record(), matching_bits(values, anchor, KEY)


HEADS_OF = {"llama": 8, "vit": 8, "bert words": 8}


@cache
def moved(name: str) -> tuple[Anchor, Table]:
    """The anchor of a trained network, and the network with everything rebuilt."""
    heads = HEADS_OF.get(name, 0)
    weights = arrays(trained(name)) if heads else dict(digits.trained(name))
    made = launch(Restructure(cast("Any", "all"), 3.0, heads), weights).weights
    assert made is not None
    return anchor_of(weights, heads), dict(made)
