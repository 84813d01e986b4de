"""The suite and its card: the same for every number of processes, and true to the results."""

import json
import multiprocessing
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import EmbedOptions, Key, attacks, embed, imprint
from neuralmark.attacks import Attack, Card, Outcome, Scene, option
from neuralmark.attacks.contract import AttackKind
from neuralmark.attacks.engine import arena, card, suite, tally
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions, SuiteOptions
from neuralmark.attacks.engine.result import Result
from neuralmark.attacks.engine.save import save_attacked
from neuralmark.errors import (
    AttackError,
    CheckpointError,
    DataMismatchError,
    MissingExtraError,
    NoMarkError,
    OutputError,
    ParameterError,
    RecordError,
    UnknownAttackError,
    UnknownFamilyError,
)
from neuralmark.marking.verification import verify
from neuralmark.records import NOT_VERIFIED, VERIFIED, Verdict
from neuralmark.records.verdict import Status
from tests.support.commands import PYTHON, clean_environment
from tests.support.images import LAYER, data, network
from tests.support.models import QUICK, gaussian, gaussian_model
from tests.support.processes import PATIENCE

KEY = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)


@dataclass(frozen=True)
class Turn(Attack):
    """Turns the signs of a share of the weights of each tensor."""

    summary: ClassVar[str] = "turn signs"
    expects: ClassVar[str] = "half is enough"
    dial: ClassVar[str] = "share"

    share: float = option(0.1, "share of the weights turned", low=0, high=1)

    def run(self, scene: Scene) -> Outcome:
        return Outcome(
            {
                name: np.where(scene.rng.random(w.shape) < self.share, -w, w)
                for name, w in scene.targets()
            }
        )


@dataclass(frozen=True)
class Refuses(Turn):
    """Cannot be run on anything."""

    error: str = option("family", "which error")

    @property
    def variant(self) -> str:
        return self.error

    def run(self, scene: Scene) -> Outcome:
        raise {
            "family": UnknownFamilyError("no such family"),
            "extra": MissingExtraError("pip install it"),
            "data": DataMismatchError("does not fit"),
        }[self.error]


@dataclass(frozen=True)
class Forge(Attack):
    """Comes back with a key that it was given."""

    summary: ClassVar[str] = "forge"
    expects: ClassVar[str] = "fails"
    kind: ClassVar[AttackKind] = "key"

    key: Key | None = None

    def run(self, scene: Scene) -> Outcome:
        return Outcome(key=self.key, queries=1)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without an anchor: it is attacked as a table too, and a table has no claim beside it."""
    folder = tmp_path_factory.mktemp("suite")
    model = gaussian_model(folder / "model.safetensors")
    out = folder / "marked.safetensors"
    embed(model, KEY, out, EmbedOptions(anchor=False))
    return out


@pytest.fixture
def verdict(marked: Path) -> Verdict:
    return verify(marked, KEY)


def lasting(card: Card) -> dict[str, Any]:
    """The card without what differs from run to run: times."""
    told = json.loads(json.dumps(card.to_dict(), allow_nan=False))
    del told["seconds"]
    for row in told["rows"]:
        for point in row["points"]:
            del point["seconds"]
    return dict(told)


def result_of(attack: Attack, verdict: Verdict, matched: int | None) -> Result:
    """What a launch would give if this many bits matched afterwards."""
    status: Status = VERIFIED if (matched or 0) >= 150 else NOT_VERIFIED
    after = None if matched is None else replace(verdict, matched=matched, status=status)
    return Result(
        attack="turn",
        kind=attack.kind,
        settings=attack.settings(),
        strength=attack.strength,
        variant=attack.variant,
        before=verdict,
        after=after,
        unreadable="gone" if after is None else "",
        seconds=0.5,
        steps=0,
        queries=0,
        change=float("inf") if after is None else 0.25,
    )


def row_of(verdict: Verdict, reached: Mapping[float, int | None]) -> card.CardRow:
    sweep = [(Turn(share), result_of(Turn(share), verdict, n)) for share, n in reached.items()]
    return tally.make_row(sweep)


def test_jobs_change_nothing(marked: Path) -> None:
    cards = [
        attacks.suite(
            marked, KEY, options=attacks.SuiteOptions(only=["noise", "shift"], seed=5, jobs=jobs)
        )
        for jobs in (1, 2)
    ]
    assert lasting(cards[0]) == lasting(cards[1])
    other = attacks.suite(marked, KEY, options=attacks.SuiteOptions(only=["noise"], seed=6, jobs=1))
    changes = [[point.change for point in card.rows[0].points] for card in (cards[0], other)]
    assert changes[0] != changes[1]


def test_one_attack_does_not_move_another(marked: Path) -> None:
    alone = attacks.suite(marked, KEY, options=attacks.SuiteOptions(only=["noise"], jobs=1))
    both = attacks.suite(marked, KEY, options=attacks.SuiteOptions(only=["shift", "noise"], jobs=1))
    assert lasting(alone)["rows"] == lasting(both)["rows"][1:]


def test_live_module_and_table_are_attacked_by_their_weights(marked: Path) -> None:
    import torch

    tensors = load_file(marked)
    module = torch.nn.Module()
    for name in ("layer1", "layer2"):
        layer = torch.nn.Linear(128, len(tensors[f"{name}.weight"]))
        module.add_module(name, layer)
        layer.weight.data = torch.from_numpy(tensors[f"{name}.weight"])
    table = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    from_table = lasting(
        attacks.suite(table, KEY, options=attacks.SuiteOptions(only=["noise"], jobs=2))
    )
    from_module = lasting(
        attacks.suite(module, KEY, options=attacks.SuiteOptions(only=["noise"], jobs=2))
    )
    here = lasting(attacks.suite(module, KEY, options=attacks.SuiteOptions(only=["noise"], jobs=1)))
    assert from_module == here
    assert from_module["model"] == "live Module"
    assert from_table["rows"] == from_module["rows"]


def test_the_card_says_what_launching_says(marked: Path) -> None:
    card = attacks.suite(marked, KEY, options=attacks.SuiteOptions(only=["noise"], seed=3, jobs=1))
    (row,) = card.rows
    sweep = attacks.get("noise").sweep()
    assert [point.strength for point in row.points] == [each.strength for each in sweep]
    for attack, point in zip(sweep, row.points, strict=True):
        result = launch(attack, marked, KEY, options=LaunchOptions(seed=arena.seed_of(attack, 3)))
        assert result.after is not None
        assert (point.matched, point.status) == (result.after.matched, result.after.status)
        assert point.held == result.survived
        assert point.change == result.change
    assert row.flip is not None
    assert row.largest_survived is not None
    assert row.largest_survived < row.flip
    assert card.certified_radius == card.before.certified_radius
    assert card.before.status == VERIFIED
    assert card.fingerprint == KEY.fingerprint


@pytest.mark.parametrize(
    ("reached", "flip", "survived", "again"),
    [
        ({0.1: 160, 0.2: 155}, None, 0.2, ()),
        ({0.1: 160, 0.2: 149}, 0.2, 0.1, ()),
        ({0.1: 100, 0.2: 90}, 0.1, None, ()),
        ({0.9: 160, 0.5: 155, 0.1: 80}, 0.1, 0.5, ()),  # weak first, whatever the numbers
        ({0.1: 160, 0.2: 100, 0.3: 155}, 0.2, 0.1, (0.3,)),
        ({0.1: 160, 0.2: None}, 0.2, 0.1, ()),
    ],
)
def test_flips(
    verdict: Verdict,
    reached: dict[float, int | None],
    flip: float | None,
    survived: float | None,
    again: tuple[float, ...],
) -> None:
    row = row_of(verdict, reached)
    assert (row.flip, row.largest_survived, row.again) == (flip, survived, again)
    told = row.to_dict()
    assert (told["flip"], told["largest_survived"]) == (flip, survived)
    assert told["survived_all"] == (flip is None)
    json.dumps(told, allow_nan=False)


def test_tensors_that_are_gone(verdict: Verdict) -> None:
    (point,) = row_of(verdict, {0.1: None}).points
    assert (point.status, point.matched, point.change) == ("unreadable", None, None)
    assert not point.held
    assert point.note == "gone"


def anchored(verdict: Verdict, reached: Mapping[float, tuple[int | None, int | None]]) -> Any:
    """A row whose copies were read by position and with the anchor."""
    sweep = []
    for share, (placed, aligned) in reached.items():
        result = result_of(Turn(share), verdict, placed)
        after = result_of(Turn(share), verdict, aligned).after
        sweep.append((Turn(share), replace(result, anchored=True, aligned=after)))
    return tally.make_row(sweep)


def test_both_columns(verdict: Verdict) -> None:
    reached = {
        0.1: (160, 160),
        0.2: (80, 159),
        0.3: (None, 155),
        0.4: (None, 100),
        0.5: (None, None),
    }
    row = anchored(verdict, reached)
    assert (row.flip, row.largest_survived) == (0.2, 0.1)
    assert row.aligned is not None
    assert (row.aligned.flip, row.aligned.largest_survived) == (0.4, 0.3)
    told = row.to_dict()
    assert (told["flip_aligned"], told["largest_survived_aligned"]) == (0.4, 0.3)
    assert told["survived_all_aligned"] is False
    third, last = row.points[2], row.points[4]
    assert (third.matched, third.matched_aligned, third.bits) == (None, 155, verdict.bits)
    assert (third.held, third.held_aligned, third.status_aligned) == (False, True, "verified")
    assert (last.matched_aligned, last.bits, last.status_aligned) == (None, None, "unreadable")
    assert last.held_aligned is False
    made = tally.make_card(verdict, [], [], seed=0, seconds=0.0)
    both = replace(made, rows=(row,))
    assert both.anchored
    assert Card.from_dict(both.to_dict()) == both


def test_the_anchor_never_makes_it_look_worse(verdict: Verdict) -> None:
    row = anchored(verdict, {0.1: (160, 151), 0.2: (155, 120), 0.3: (80, 90)})
    assert [point.matched_aligned for point in row.points] == [160, 120, 90]


def test_without_an_anchor_there_is_one_column(verdict: Verdict) -> None:
    row = row_of(verdict, {0.1: 160})
    assert row.aligned is None
    assert row.to_dict()["survived_all_aligned"] is None
    (point,) = row.points
    assert (point.status_aligned, point.matched_aligned, point.held_aligned) == (None, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"held_aligned": None},
        {"status_aligned": None},
        {"status_aligned": None, "held_aligned": None},
        {"matched_aligned": 161},
        {"status_aligned": "splendid"},
    ],
)
def test_a_card_that_contradicts_itself_is_refused(verdict: Verdict, wrong: dict[str, Any]) -> None:
    made = tally.make_card(verdict, [], [], seed=0, seconds=0.0)
    told = replace(made, rows=(anchored(verdict, {0.1: (None, 155)}),)).to_dict()
    told["rows"][0]["points"][0] |= wrong
    with pytest.raises(RecordError):
        Card.from_dict(told)


def test_forging_succeeds_only_if_verified(marked: Path, verdict: Verdict) -> None:
    other = Key(QUICK, b"", salt=bytes(32), secret=bytes([2]) * 32)
    outcomes = {None: True, other: True, KEY: False}  # the owner's own key is the best forgery
    for key, held in outcomes.items():
        attack = Forge(key)
        result = launch(attack, marked, KEY)
        made = tally.make_card(verdict, [(attack, result)], [], seed=0, seconds=1.0)
        assert made.removals == ()
        (row,) = made.forgeries
        assert row.points[0].held == held, key
        assert (row.flipped is None) == held
    assert tally.make_point(Forge(None), launch(Forge(None), marked, KEY)).status == "no-key"


def test_what_is_not_run_is_listed(marked: Path) -> None:
    field = arena.Arena(marked, KEY, None, (), 0).entered()
    for error, words in (("family", "no such family"), ("extra", "pip install it")):
        refusal = field.fight(Refuses(error=error))
        assert isinstance(refusal, card.Skipped)
        assert (refusal.why, refusal.variant) == (words, error)
    with pytest.raises(DataMismatchError):
        field.fight(Refuses(error="data"))


def test_refusals_are_gathered() -> None:
    same = [card.Skipped("a", "why", "x"), card.Skipped("a", "why", "y")]
    assert suite.gathered(same, set()) == [card.Skipped("a", "why")]
    assert suite.gathered([*same, same[0]], {"a"}) == same
    differ = [card.Skipped("a", "one", "x"), card.Skipped("a", "two", "x")]
    assert suite.gathered(differ, set()) == differ


@pytest.mark.parametrize(
    ("needs", "words"),
    [({"data"}, "needs data"), ({"model"}, "running network"), ({"others"}, "others=")],
)
def test_what_it_needs(needs: set[str], words: str) -> None:
    attack = type("Needy", (Turn,), {"needs": frozenset(needs)})
    assert words in suite.obstacle(attack, others=False)
    assert (suite.obstacle(attack, others=True) == "") == (needs == {"others"})
    assert suite.obstacle(Turn, others=False) == ""


def test_every_attack_is_run_or_listed() -> None:
    members, skipped = suite.enlist(None, others=True)
    run = {attacks.name_of(attack) for attack in members}
    assert run | {each.attack for each in skipped} == set(attacks.names())
    assert all(not attack.needs & {"data", "model"} for attack in members)


def test_seeds_differ_and_stay() -> None:
    sweep = attacks.get("noise").sweep()
    assert len({arena.seed_of(attack, 0) for attack in sweep}) == len(sweep)
    assert arena.seed_of(sweep[0], 0) != arena.seed_of(sweep[0], 1)
    assert arena.seed_of(sweep[0], 0) == arena.seed_of(replace(sweep[0]), 0)


def test_progress(marked: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    for jobs in (1, 2):
        attacks.suite(
            marked,
            KEY,
            options=attacks.SuiteOptions(only=["shift"], jobs=jobs),
            progress=lambda *step: seen.append(step),
        )
    total = len(attacks.get("shift").sweep())
    assert seen == 2 * [("shift", i, total) for i in range(1, total + 1)]


def test_stopping_leaves_no_worker_behind(marked: Path) -> None:
    def stop(_name: str, _done: int, _total: int) -> None:
        assert multiprocessing.active_children()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attacks.suite(
            marked, KEY, options=attacks.SuiteOptions(only=["noise"], jobs=2), progress=stop
        )
    assert multiprocessing.active_children() == []


def test_bad_input(marked: Path, tmp_path: Path) -> None:
    with pytest.raises(NoMarkError, match="does not carry"):
        attacks.suite(
            marked.with_name("model.safetensors"),
            KEY,
            options=attacks.SuiteOptions(only=["shift"], jobs=1),
        )
    with pytest.raises(UnknownAttackError, match="did you mean 'shift'"):
        attacks.suite(marked, KEY, options=attacks.SuiteOptions(only=["shif"], jobs=1))
    with pytest.raises(ParameterError, match="jobs"):
        attacks.suite(marked, KEY, options=attacks.SuiteOptions(jobs=0))
    with pytest.raises(CheckpointError):
        attacks.suite(
            marked,
            KEY,
            options=attacks.SuiteOptions(others=[tmp_path / "no"], only=["merge"], jobs=2),
        )
    other = tmp_path / "other.safetensors"
    save_file({"layer1.weight": gaussian(3, 3)}, other)
    for jobs in (1, 2):
        with pytest.raises(DataMismatchError):
            attacks.suite(
                marked, KEY, options=attacks.SuiteOptions(others=[other], only=["merge"], jobs=jobs)
            )


def test_the_environment_is_put_back(marked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    attacks.suite(marked, KEY, options=attacks.SuiteOptions(only=["shift"], jobs=2))
    assert dict(os.environ) == before


SCRIPT = """
import sys
from neuralmark import Key, attacks, errors
try:
    options = attacks.SuiteOptions(only=["shift"], jobs=2)
    attacks.suite(sys.argv[1], Key.load(sys.argv[2]), options)
except errors.AttackError as error:
    print(error)
"""


def test_a_script_without_a_guard_is_told_so(marked: Path, tmp_path: Path) -> None:
    KEY.save(tmp_path / "k.nmkey", None)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [PYTHON, script, marked, tmp_path / "k.nmkey"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "__main__" in done.stdout


def test_save_keeps_the_format_or_says_another(marked: Path, tmp_path: Path) -> None:
    weights = dict(load_file(marked))
    weights["layer1.weight"] = weights["layer1.weight"] * np.float32(2)
    out = tmp_path / "out.safetensors"
    assert save_attacked(marked, weights, out) == "safetensors"
    written = load_file(out)
    assert set(written) == set(weights)
    for name, value in weights.items():
        assert np.array_equal(written[name], value)
    with pytest.raises(OutputError):
        save_attacked(marked, weights, out)
    for bad in (marked, tmp_path):
        with pytest.raises(OutputError):
            save_attacked(marked, weights, bad, overwrite=True)


def test_save_other_shapes(tmp_path: Path) -> None:
    model = tmp_path / "m.npz"
    np.savez(model, w=gaussian(8, 8).astype(np.float16), count=np.arange(3), b=gaussian(4))
    grown = {"w": gaussian(9, 8).astype(np.float16).astype(np.float32), "b": gaussian(4)}
    out = tmp_path / "out"
    assert save_attacked(model, grown, out) == "safetensors"
    written = load_file(out)
    assert written["w"].dtype == np.float16
    assert np.array_equal(written["w"], grown["w"])
    assert np.array_equal(written["count"], np.arange(3))
    assert save_attacked(model, {**grown, "w": gaussian(8, 8)}, tmp_path / "same.npz") == "npz"
    assert np.load(tmp_path / "same.npz")["w"].dtype == np.float16


def test_the_lazy_names() -> None:
    assert attacks.suite is suite.suite
    assert attacks.Card is card.Card
    assert issubclass(AttackError, Exception)
    with pytest.raises(AttributeError):
        attacks.nonsense  # noqa: B018


def test_a_live_module_with_data_goes_through_the_training_attacks_too() -> None:
    from neuralmark.attacks import suite

    model = network()
    key = Key(QUICK, b"", salt=bytes(32), secret=bytes([9]) * 32)
    made = imprint(model, key, tensors=[LAYER], strength=4.0)
    card = suite(
        model,
        key,
        options=SuiteOptions(jobs=1, only=["finetune", "shift"]),
        claim=made.claim,
        data=data(),
    )
    told = card.to_dict()
    rows = {(row["attack"], row["variant"]) for row in told["rows"]}
    assert {("finetune", "all"), ("finetune", "lora"), ("shift", "")} <= rows
    assert not any(each["attack"] == "finetune" for each in told["skipped"])
    without = suite(
        model, key, options=SuiteOptions(jobs=1, only=["finetune", "shift"]), claim=made.claim
    ).to_dict()
    assert [each["attack"] for each in without["skipped"]] == ["finetune"]
