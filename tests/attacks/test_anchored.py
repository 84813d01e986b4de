"""Attacked copies read with the anchor: both columns, from launching to the card."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import EmbedOptions, Key, attacks, embed, verify
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.attacks.adapt import Adapt
from neuralmark.attacks.contract import Array
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions, SuiteOptions
from neuralmark.attacks.engine.subject import subject_of
from neuralmark.attacks.forge_random import ForgeRandom
from neuralmark.attacks.merge import Merge
from neuralmark.attacks.narrow import Narrow
from neuralmark.attacks.noise import Noise
from neuralmark.attacks.prune import Prune
from neuralmark.attacks.restructure import Restructure
from neuralmark.core import readout
from neuralmark.core.imprint import LeastChange, goal_of
from neuralmark.errors import NoMarkError
from neuralmark.marking.reading import require_carriers
from neuralmark.records import Claim
from tests.support.claims import without_file
from tests.support.models import QUICK

torch = pytest.importorskip("torch")

from tests.support import architectures as models  # noqa: E402

KEY = Key(QUICK, b"", salt=bytes(32), secret=bytes([3]) * 32)
NAMES = ("layer3.0.conv2.weight", "layer3.1.conv1.weight", "layer3.1.conv2.weight")


def network() -> Any:
    torch.manual_seed(0)
    return models.lived_in(models.CifarResNet())


@cache
def marked() -> tuple[dict[str, Array], Anchor]:
    """A network that carries a mark bound to its anchor."""
    table: dict[str, Array] = dict(subject_of(network()).weights)
    placement = tuple((name, table[name].shape) for name in NAMES)
    anchor = build(OriginalArrays(table), AnchorRecipe(placement))
    mark = KEY.at(placement, anchor.digest)
    carriers = require_carriers(mark, placement)
    flat = np.concatenate([table[name].reshape(-1) for name in NAMES]).astype(np.float64)
    at = carriers.positions(0, carriers.size)
    pooled = readout.pool(flat[at], carriers.pools)
    shift = LeastChange(mark).change(pooled, goal_of(pooled, 1.0))
    flat[at] += carriers.spread(shift, 0, len(at))
    parts = np.split(flat.astype(np.float32), np.cumsum([table[n].size for n in NAMES])[:-1])
    return table | {n: p.reshape(table[n].shape) for n, p in zip(NAMES, parts, strict=True)}, anchor


def launched(attack: attacks.Attack, model: Any = None) -> Any:
    table, anchor = marked()
    given = dict(table) if model is None else model
    return launch(attack, given, KEY, LaunchOptions(anchor=anchor))


def live() -> Any:
    model = network()
    table, _ = marked()
    model.load_state_dict({n: torch.tensor(v) for n, v in table.items()}, strict=False)
    return model


@pytest.mark.parametrize(
    "attack", [Restructure("permute"), Restructure("all", 0), Restructure("flip")], ids=str
)
def test_what_position_loses_the_anchor_finds(attack: attacks.Attack) -> None:
    result = launched(attack)
    assert result.before.verified
    assert not result.survived
    assert result.after.rate < 0.7
    assert result.survived_aligned
    assert result.aligned.verified
    assert result.aligned.readings[0].matched < result.aligned.readings[1].matched
    told = result.to_dict()
    assert told["survived_aligned"] is True
    assert told["aligned"]["matched"] == result.aligned.matched


@pytest.mark.parametrize("attack", [Restructure("dummy", 4), Narrow(0.125), Adapt(0.0)], ids=str)
def test_what_has_other_shapes_is_read_with_the_anchor_only(attack: attacks.Attack) -> None:
    for result in (launched(attack), launched(attack, live())):
        assert result.after is None
        assert result.unreadable
        assert result.survived_aligned


def test_where_position_is_enough_both_say_the_same() -> None:
    result = launched(Noise(0.1))
    assert result.survived
    assert result.survived_aligned
    assert result.aligned.matched == result.after.matched


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_the_anchored_verdict_is_that_of_verify(tmp_path: Path, share: float) -> None:
    """Rows divided by their size are read without an anchor only: never count them with one."""
    save_file(dict(subject_of(network()).weights), tmp_path / "model.safetensors")
    out = tmp_path / "marked.safetensors"
    embed(tmp_path / "model.safetensors", KEY, out, EmbedOptions(tensors=NAMES))
    result = launch(Prune(share, "structured"), out, KEY)
    assert result.weights is not None
    assert result.aligned is not None
    stolen = {name: np.array(values) for name, values in result.weights.items()}
    again = verify(stolen, KEY, claim=f"{out}.claim.json")
    assert (result.aligned.status, result.aligned.matched) == (again.status, again.matched)
    assert result.aligned.readings == again.readings


def test_what_is_gone_is_gone() -> None:
    result = launched(Merge(0.02))
    assert not result.survived
    assert result.survived_aligned is False


def test_forgers_are_not_asked() -> None:
    result = launched(ForgeRandom(tries=1))
    assert not result.anchored
    assert result.aligned is None
    assert result.survived_aligned is None


def test_without_the_anchor_the_mark_is_not_found() -> None:
    table, anchor = marked()
    with pytest.raises(NoMarkError):
        launch(Noise(0.1), dict(table), KEY)
    other = Key(QUICK, b"", salt=bytes(32), secret=bytes([4]) * 32)
    with pytest.raises(NoMarkError):
        launch(Noise(0.1), dict(table), other, LaunchOptions(anchor=anchor))


def test_the_card_has_both_columns() -> None:
    table, anchor = marked()
    options = SuiteOptions(["narrow", "shift", "forge-random"], jobs=2, anchor=anchor)
    card = attacks.suite(dict(table), KEY, options)
    assert card.anchored
    rows = {row.label: row for row in card.removals}
    narrowed, shifted = rows["narrow"].aligned, rows["shift"].aligned
    assert rows["narrow"].flip == 0.125
    assert narrowed is not None
    assert narrowed.largest_survived is not None
    assert shifted is not None
    assert [p.matched for p in shifted.points] == [p.matched for p in rows["shift"].points]
    assert all(row.aligned is None for row in card.forgeries)
    assert attacks.Card.from_dict(card.to_dict()) == card


def test_processes_find_the_anchor_beside_the_claim(tmp_path: Path) -> None:
    out = tmp_path / "marked.safetensors"
    save_file(dict(subject_of(network()).weights), tmp_path / "model.safetensors")
    embed(tmp_path / "model.safetensors", KEY, out, EmbedOptions(tensors=NAMES))
    cards = [
        attacks.suite(out, KEY, SuiteOptions(["narrow"], jobs=jobs)).rows[0] for jobs in (1, 2)
    ]
    points = [[(p.matched, p.matched_aligned, p.held_aligned) for p in row.points] for row in cards]
    assert points[0] == points[1]
    assert points[0][0][0] is None
    assert points[0][0][2]
    bare = attacks.suite(
        dict(load_file(out)),
        KEY,
        SuiteOptions(["shift"], jobs=1),
        claim=without_file(Claim.load(f"{out}.claim.json")),
    )
    assert not bare.anchored  # a claim alone names the anchor, but holds none
    assert bare.before.verified
