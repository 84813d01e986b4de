"""Arbitration: the paper's criterion on models that really were marked, overwritten and faked."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import Claim, EmbedOptions, Key, Parameters, Verdict, embed, verify
from neuralmark.core import bound
from neuralmark.disputes import Claimant, Party, Relation, Ruling, Shown, arbitrate, rule
from neuralmark.disputes.parties import DISPUTED, exhibit_of, stated_time
from neuralmark.disputes.relations import RELATED, Compared, correlation, pair, relate
from neuralmark.disputes.sightings import ABSENT, PRESENT, TRACES, UNPROVEN, Sighting, state_of
from neuralmark.errors import (
    CheckpointError,
    ClaimMismatchError,
    DisputeError,
    NonFiniteError,
    RecordError,
    UnreadableError,
)
from neuralmark.records.alignment import Alignment
from tests.support.checks import one_line
from tests.support.models import QUICK, gaussian

Weights = npt.NDArray[np.float32]
BODY = "body.weight"
BITS, POOLS = QUICK.bits, QUICK.pools


def fixed_key(number: int, parameters: Parameters = QUICK) -> Key:
    """Always the same key for a number."""
    return Key(parameters, b"", salt=bytes([number]) * 32, secret=bytes([number]) * 32)


OWNER, THIEF, THIRD = fixed_key(1), fixed_key(2), fixed_key(3)


def write(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> Path:
    save_file(dict(tensors), path)
    return path


def base(path: Path, seed: int = 1) -> Path:
    """A model whose body can carry marks; the rest stays unmarked."""
    tensors = {
        BODY: gaussian(POOLS, BITS, seed=seed),
        "side.weight": gaussian(160, 128, seed=seed + 100),
        "head.weight": gaussian(100, 128, seed=seed + 200),
        "norm.weight": 1 + gaussian(3000, seed=seed + 300),
    }
    return write(path, tensors)


def changed(source: Path, path: Path, **tensors: Weights) -> Path:
    return write(path, load_file(source) | {f"{n}.weight": t for n, t in tensors.items()})


def noisy(source: Path, path: Path, deviations: float) -> Path:
    noise = np.float32(deviations) * gaussian(POOLS, BITS, seed=77)
    return changed(source, path, body=load_file(source)[BODY] + noise)


def mark(source: Path, key: Key, path: Path, strength: float | None = None) -> Path:
    """Without an anchor, so that it is found with a claim and without."""
    embed(source, key, path, EmbedOptions(tensors=[BODY], strength=strength, anchor=False))
    return path


@pytest.fixture
def owned(tmp_path: Path) -> Path:
    """The owner's model, with his mark only."""
    return mark(base(tmp_path / "base.safetensors"), OWNER, tmp_path / "owned.safetensors")


@pytest.fixture
def stolen(owned: Path, tmp_path: Path) -> Path:
    """The thief's copy, with his mark written over the owner's, in the same tensor."""
    return mark(owned, THIEF, tmp_path / "stolen.safetensors", strength=4)


def states(ruling: Ruling) -> dict[tuple[str, str], str]:
    return {(s.party, s.model.removeprefix("the exhibit of ")): s.state for s in ruling.sightings}


def test_the_owner_wins_over_one_who_marked_over_him(owned: Path, stolen: Path) -> None:
    parties = [Claimant("thief", THIEF, stolen), Claimant("owner", OWNER, owned)]
    for disputed in (None, stolen):
        ruling = arbitrate(parties, disputed=disputed)
        assert ruling.owner == "owner"
        assert ruling.decided
        assert (
            states(ruling).items()
            >= {
                ("owner", "owner"): PRESENT,
                ("owner", "thief"): PRESENT,
                ("thief", "thief"): PRESENT,
                ("thief", "owner"): ABSENT,
            }.items()
        )
        assert "owner: the mark of thief is absent from the exhibit of owner" in ruling.reasons
        assert "thief: the mark of owner is present in the exhibit of thief" in ruling.reasons
        assert ruling.set_aside == ruling.cautions == ()
        for relation in ruling.relations:
            assert relation.unmarked == pytest.approx(1.0)
            assert relation.overall is not None
            assert 0.9 < relation.overall <= 1.0


def test_a_copy_without_a_mark_of_its_own(owned: Path) -> None:
    ruling = arbitrate([Claimant("owner", OWNER, owned), Claimant("thief", THIEF, owned)])
    assert ruling.owner == "owner"


def test_an_overwrite_that_destroys_the_mark_leaves_it_undecided(
    owned: Path, tmp_path: Path
) -> None:
    fresh = changed(owned, tmp_path / "fresh.safetensors", body=gaussian(POOLS, BITS, seed=5))
    wiped = mark(fresh, THIEF, tmp_path / "wiped.safetensors")
    ruling = arbitrate([Claimant("owner", OWNER, owned), Claimant("thief", THIEF, wiped)])
    assert ruling.owner is None
    assert ruling.set_aside == ()  # the unmarked tensors are still the owner's
    assert set(ruling.reasons) == {
        "owner: its mark is absent from the exhibit of thief",
        "thief: its mark is absent from the exhibit of owner",
    }


def test_traces_are_not_absence(owned: Path, tmp_path: Path) -> None:
    weak = noisy(owned, tmp_path / "weak.safetensors", 0.75)
    faint = mark(weak, THIEF, tmp_path / "faint.safetensors")
    ruling = arbitrate([Claimant("owner", OWNER, owned), Claimant("thief", THIEF, faint)])
    assert states(ruling)["owner", "thief"] == TRACES
    assert ruling.owner is None
    assert "thief: the mark of owner has left traces in the exhibit of thief" in ruling.reasons
    assert any(reason.startswith("owner: its mark shows only traces") for reason in ruling.reasons)
    found = ruling.sighting("owner", exhibit_of("thief")).bound_log2
    assert found is not None
    caution = next(c for c in ruling.cautions if "traces of the mark of owner" in c)
    assert f"2^{found:.0f}" in caution
    assert "million" not in caution


@pytest.mark.parametrize("state", [PRESENT, TRACES])
def test_a_mark_in_the_disputed_model_blocks_though_its_exhibit_was_set_aside(
    verdicts: dict[str, Verdict], state: str
) -> None:
    parties = parties_of(3)
    labels = [party.label for party in parties] + [DISPUTED]
    given = {(p.name, label): verdicts[ABSENT] for p in parties for label in labels}
    for label in (parties[1].label, parties[2].label, DISPUTED):
        given["b", label] = verdicts[PRESENT]
    given["a", DISPUTED] = verdicts[state]
    relations = [Relation(p.label, DISPUTED, r, r) for p, r in zip(parties, (0, 1, 1), strict=True)]
    ruling = rule(parties, given, relations, Shown("d.st"))
    assert (ruling.owner, ruling.set_aside) == (None, ("a",))
    for name in "bc":
        assert any(f"{name}: the mark of a " in r and DISPUTED in r for r in ruling.reasons)


def test_a_thief_who_permuted_the_rest_does_not_win(owned: Path, tmp_path: Path) -> None:
    """The marked tensor stays as it was, the others are reordered: the owner is set aside."""
    turned = load_file(owned)
    rng = np.random.default_rng(0)
    for name in ("side.weight", "head.weight"):
        turned[name] = np.ascontiguousarray(rng.permuted(turned[name].ravel()))
        turned[name] = turned[name].reshape(load_file(owned)[name].shape)
    big = {f"pad{i}.weight": gaussian(400, 400, seed=900 + i) for i in range(4)}
    copy = write(tmp_path / "copy.safetensors", turned | big)
    disputed = tmp_path / "disputed.safetensors"
    embed(copy, THIEF, disputed, options=EmbedOptions(tensors=["pad0.weight"]))
    claim = Path(f"{disputed}.claim.json")
    own = load_file(disputed)
    own[BODY] = gaussian(POOLS, BITS, seed=5)  # what he shows has his mark only
    exhibit = write(tmp_path / "exhibit.safetensors", own)
    grown = load_file(owned) | {k: gaussian(400, 400, seed=950 + i) for i, k in enumerate(big)}
    mine = write(tmp_path / "mine.safetensors", grown)
    parties = [Claimant("owner", OWNER, mine), Claimant("thief", THIEF, exhibit, claim)]
    ruling = arbitrate(parties, disputed=disputed)
    assert states(ruling)["owner", DISPUTED] == PRESENT
    assert ruling.set_aside == ("owner",)
    assert ruling.owner is None


def test_rulings_say_what_was_found_and_not_what_to_type(
    owned: Path, stolen: Path, tmp_path: Path
) -> None:
    own = mark(base(tmp_path / "other.safetensors", seed=50), THIRD, tmp_path / "own.safetensors")
    short = Claimant("short", fixed_key(9, Parameters(64, 128, 1)), owned)
    parties = [
        Claimant("owner", OWNER, owned),
        Claimant("thief", THIEF, stolen),
        Claimant("other", THIRD, own),
        short,
    ]
    for disputed in (None, stolen, own):
        ruling = arbitrate(parties, disputed=disputed)
        said = [*ruling.reasons, *ruling.cautions, *(s.reason for s in ruling.sightings)]
        for line in said:
            assert "--" not in line, line
            assert "neuralmark " not in line, line
            assert "give " not in line, line
            assert "make keys" not in line, line


def test_nobody_has_marked_anything(tmp_path: Path) -> None:
    plain = base(tmp_path / "plain.safetensors")
    ruling = arbitrate([Claimant("a", OWNER, plain), Claimant("b", THIEF, plain)], disputed=plain)
    assert ruling.owner is None
    assert set(states(ruling).values()) == {ABSENT}
    assert "a: its mark is absent from the exhibit of a" in ruling.reasons
    assert "b: its mark is absent from the disputed model" in ruling.reasons


def test_an_unrelated_exhibit_is_set_aside(owned: Path, stolen: Path, tmp_path: Path) -> None:
    own = mark(base(tmp_path / "other.safetensors", seed=50), THIEF, tmp_path / "own.safetensors")
    parties = [Claimant("owner", OWNER, owned), Claimant("thief", THIEF, own)]
    ruling = arbitrate(parties, disputed=stolen)
    # his mark is in the disputed model, and nothing he shows says how it came there
    assert (ruling.owner, ruling.set_aside) == (None, ("thief",))
    unrelated = next(r for r in ruling.relations if r.one == exhibit_of("thief"))
    assert unrelated.unmarked is not None
    assert abs(unrelated.unmarked) < 0.05
    assert not unrelated.related
    assert any("was set aside" in reason for reason in ruling.reasons)
    assert any("reordered" in caution for caution in ruling.cautions)
    # without a disputed model nothing says which of the two it is about
    ruling = arbitrate(parties)
    assert (ruling.owner, ruling.set_aside) == (None, ("owner", "thief"))
    # nor by majority: two who show another model do not win against the third
    double = mark(own, THIRD, tmp_path / "double.safetensors", strength=4)
    ruling = arbitrate([*parties, Claimant("friend", THIRD, double)])
    assert (ruling.owner, ruling.set_aside) == (None, ("owner",))
    assert any("nothing says which of them" in reason for reason in ruling.reasons)


def test_an_unrelated_exhibit_does_not_win(owned: Path, stolen: Path, tmp_path: Path) -> None:
    """Though it has only the thief's mark, and his mark is in everything that is not set aside."""
    own = mark(base(tmp_path / "other.safetensors", seed=50), THIEF, tmp_path / "own.safetensors")
    parties = [Claimant("owner", OWNER, stolen), Claimant("thief", THIEF, own)]
    ruling = arbitrate(parties, disputed=stolen)
    assert ruling.owner is None
    missing = next(case for case in ruling.cases if case.party == "thief").missing
    assert missing == ("the exhibit of thief is unrelated to the disputed model and was set aside",)


def test_a_reordered_copy_is_put_in_order_and_wins_nothing(owned: Path, tmp_path: Path) -> None:
    """Where the weights lie, such a copy is another model; put in order, it is the same."""
    order = np.random.default_rng(0).permutation
    turned = {
        name: np.ascontiguousarray(tensor[order(len(tensor))])
        for name, tensor in load_file(owned).items()
    }
    copy = mark(write(tmp_path / "t.safetensors", turned), THIEF, tmp_path / "copy.safetensors")
    parties = [Claimant("owner", OWNER, owned), Claimant("thief", THIEF, copy)]
    ruling = arbitrate(parties, disputed=copy)
    assert ruling.set_aside == ()
    (relation,) = [each for each in ruling.relations if each.one == exhibit_of("owner")]
    assert relation.correlation is not None
    assert relation.correlation < 0.2
    assert relation.aligned is not None
    assert relation.aligned > 0.8
    assert ruling.owner != "thief"
    assert arbitrate(parties).owner != "thief"


def test_a_copy_with_idle_channels_wins_nothing(owned: Path, tmp_path: Path) -> None:
    """Other shapes: nothing can be compared where it lies; put in order, it is the same."""
    wider = {
        name: np.concatenate([tensor, gaussian(4, *tensor.shape[1:], seed=5)])
        for name, tensor in load_file(owned).items()
    }
    copy = mark(write(tmp_path / "w.safetensors", wider), THIEF, tmp_path / "copy.safetensors")
    parties = [Claimant("owner", OWNER, owned), Claimant("thief", THIEF, copy)]
    ruling = arbitrate(parties, disputed=copy)
    assert ruling.set_aside == ()
    assert ruling.owner != "thief"


def test_whoever_chooses_what_to_mark_does_not_choose_what_is_compared(
    owned: Path, tmp_path: Path
) -> None:
    """Marking all but a replaced tensor must not make the owner's exhibit unrelated."""
    swapped = changed(owned, tmp_path / "swap.safetensors", head=gaussian(100, 128, seed=8))
    disputed = tmp_path / "disputed.safetensors"
    embed(swapped, THIEF, disputed, options=EmbedOptions(tensors=[BODY, "side.weight"]))
    claim = Path(f"{disputed}.claim.json")
    parties = [Claimant("owner", OWNER, owned), Claimant("thief", THIEF, disputed, claim)]
    ruling = arbitrate(parties, disputed=disputed)
    mine = next(r for r in ruling.relations if r.one == exhibit_of("owner"))
    assert mine.unmarked is not None
    assert abs(mine.unmarked) < 0.05
    assert mine.related
    assert (ruling.owner, ruling.set_aside) == ("owner", ())


def fitted(weights: Weights) -> Key:
    """A matrix that matches an unmarked tensor: for every b of half ones, z = b - 1/2 exactly.

    One filter round and contiguous pools of half a row make pooled = W b / (n/2), linear in b.
    """
    centred = np.eye(BITS) - 1 / BITS
    matrix = (BITS / 2 * centred @ np.linalg.pinv(weights.astype(np.float64))).T
    for step in range(1000):
        key = Key.raw((matrix * (1 + step * 1e-4)).astype(np.float32), 1, "contiguous")
        if key.at((("any", (1,)),)).bits.sum() == BITS // 2:
            return key
    raise AssertionError("no hash of half ones")


def test_a_fitted_matrix_decides_nothing(owned: Path, stolen: Path, tmp_path: Path) -> None:
    forged = fitted(load_file(owned)[BODY])
    assert verify(owned, forged).matched == BITS
    ruling = arbitrate([Claimant("forger", forged, owned), Claimant("owner", OWNER, owned)])
    assert states(ruling)["forger", "owner"] == UNPROVEN
    assert ruling.owner == "owner"
    assert any("key of forger can prove nothing" in caution for caution in ruling.cautions)
    # on a model that nobody marked it wins nothing either
    plain = base(tmp_path / "plain.safetensors")
    forged = fitted(load_file(plain)[BODY])
    ruling = arbitrate([Claimant("forger", forged, plain), Claimant("owner", OWNER, plain)])
    assert ruling.owner is None
    assert (
        "forger: its mark matches without proof (which is not a mark) in the exhibit of forger"
        in (ruling.reasons)
    )
    # and a half-fitted one leaves no traces that would stand in the owner's way
    blurred = fitted(load_file(noisy(owned, tmp_path / "blur.safetensors", 0.8))[BODY])
    verdict = verify(owned, blurred)
    assert verdict.status == "not-verified"
    assert verdict.bound_log2 < -20
    assert arbitrate([Claimant("a", blurred, stolen), Claimant("b", OWNER, owned)]).owner == "b"


def test_a_key_too_short_to_prove(owned: Path, tmp_path: Path) -> None:
    short = fixed_key(9, Parameters(64, 128, 1))
    copy = mark(owned, short, tmp_path / "short.safetensors")
    ruling = arbitrate([Claimant("short", short, copy), Claimant("owner", OWNER, owned)])
    assert states(ruling)["short", "short"] == UNPROVEN
    assert states(ruling)["short", "owner"] == ABSENT
    assert ruling.owner == "owner"


def test_three_parties(owned: Path, stolen: Path, tmp_path: Path) -> None:
    again = mark(stolen, THIRD, tmp_path / "again.safetensors", strength=4)
    parties = [
        Claimant("third", THIRD, again),
        Claimant("owner", OWNER, owned),
        Claimant("thief", THIEF, stolen),
    ]
    ruling = arbitrate(parties, disputed=again)
    assert ruling.owner == "owner"
    assert len(ruling.sightings) == 12
    assert states(ruling)["thief", "third"] == PRESENT
    # between the two thieves alone, the first of them shows a model without the other's mark
    assert arbitrate([parties[0], parties[2]]).owner == "thief"


def test_a_mark_that_has_no_place_in_a_model_is_absent(
    owned: Path, stolen: Path, tmp_path: Path
) -> None:
    more = load_file(stolen) | {"extra.weight": gaussian(256, 100, seed=4)}
    grown = write(tmp_path / "grown.safetensors", more)
    out = tmp_path / "extra.safetensors"
    embed(grown, THIRD, out, options=EmbedOptions(tensors=["extra.weight"], anchor=False))
    parties = [
        Claimant("owner", OWNER, owned),
        Claimant("thief", THIRD, out, Claim.load(f"{out}.claim.json")),
    ]
    ruling = arbitrate(parties)
    nowhere = ruling.sighting("thief", exhibit_of("owner"))
    assert (nowhere.state, nowhere.matched) == (ABSENT, None)
    assert ruling.owner == "owner"


def test_claims_are_followed(owned: Path, stolen: Path, tmp_path: Path) -> None:
    parties = [
        Claimant("owner", OWNER, owned, Path(f"{owned}.claim.json")),
        Claimant("thief", THIEF, stolen),
    ]
    ruling = arbitrate(parties)
    assert {s.party: s.trials for s in ruling.sightings} == {"owner": 2, "thief": 2}
    assert ruling.owner == "owner"
    alone = write(tmp_path / "alone.safetensors", load_file(stolen))  # no claim beside it
    ruling = arbitrate([parties[0], replace(parties[1], exhibit=alone)])
    assert {s.party: s.trials for s in ruling.sightings} == {"owner": 2, "thief": 10}
    assert ruling.owner == "owner"
    wrong = replace(parties[0], claim=Path(f"{stolen}.claim.json"))
    with pytest.raises(ClaimMismatchError, match="owner in the exhibit of owner"):
        arbitrate([wrong, parties[1]])
    broken = replace(parties[0], claim=owned)
    with pytest.raises(RecordError, match="the claim of owner"):
        arbitrate([broken, parties[1]])


def test_renamed_tensors_are_compared_by_shape_only(
    owned: Path, stolen: Path, tmp_path: Path
) -> None:
    names = {name: f"z{i}.kernel" for i, name in enumerate(load_file(stolen))}
    renamed = {names[name]: tensor for name, tensor in load_file(stolen).items()}
    other = write(tmp_path / "renamed.safetensors", renamed)
    one = Claimant("owner", OWNER, owned, Path(f"{owned}.claim.json"))
    two = Claimant("thief", THIEF, stolen, Path(f"{stolen}.claim.json"))
    ruling = arbitrate([one, two], disputed=other)
    assert (ruling.owner, ruling.set_aside) == (None, ())
    states = {s.party: s.state for s in ruling.sightings if s.model == DISPUTED}
    assert states == {"owner": "absent", "thief": "absent"}


def test_parties_that_cannot_be_ruled_on(owned: Path, stolen: Path) -> None:
    one, two = Claimant("one", OWNER, owned), Claimant("two", THIEF, stolen)
    copied = Key(QUICK, b"", salt=bytes(32), secret=OWNER.secret)
    assert copied.fingerprint != OWNER.fingerprint
    matrix = fitted(load_file(owned)[BODY])
    cases: tuple[tuple[list[Claimant], str], ...] = (
        ([], "two parties"),
        ([one], "two parties"),
        ([one, replace(two, name="one")], "named twice"),
        ([one, replace(two, key=OWNER)], "the same key"),
        ([one, replace(two, key=copied)], "the same key"),
        ([replace(one, key=matrix), replace(two, key=replace(matrix, salt=b"x" * 32))], "the same"),
        ([one, replace(two, name=" ")], "not a name"),
        ([one, replace(two, name="a\nb")], "not a name"),
        ([one, replace(two, name="x" * 101)], "not a name"),
        ([one, replace(two, stated_time="soon")], "not a time"),
    )
    for parties, words in cases:
        with pytest.raises(DisputeError, match=words) as caught:
            arbitrate(parties)
        one_line(caught.value)


def test_models_that_cannot_be_read(owned: Path, tmp_path: Path) -> None:
    one = Claimant("one", OWNER, owned)
    with pytest.raises(CheckpointError, match=r"the exhibit of two: .*no such file"):
        arbitrate([one, Claimant("two", THIEF, tmp_path / "none.safetensors")])
    with pytest.raises(CheckpointError, match="the disputed model: "):
        arbitrate([one, Claimant("two", THIEF, owned)], disputed=tmp_path)
    rotten = changed(owned, tmp_path / "nan.safetensors", body=gaussian(POOLS, BITS) + np.nan)
    claimed = replace(one, claim=Path(f"{owned}.claim.json"))
    with pytest.raises(NonFiniteError, match="one in the exhibit of two"):
        arbitrate([claimed, Claimant("two", THIEF, rotten)])
    whole = load_file(owned)
    whole[BODY] = (whole[BODY] * 1000).astype(np.int8)
    packed = write(tmp_path / "int8.safetensors", whole)
    ruling = arbitrate([claimed, Claimant("two", THIEF, packed)])
    assert ruling.owner is None  # an exhibit that cannot be read stops nothing, and wins nothing
    with pytest.raises(UnreadableError, match="the disputed model"):
        arbitrate([claimed, Claimant("two", THIEF, owned)], disputed=packed)


def test_stated_times_are_reported_and_decide_nothing(owned: Path, stolen: Path) -> None:
    one = Claimant("owner", OWNER, owned, stated_time="2024-05-01T02:00+02:00")
    two = Claimant("thief", THIEF, stolen, stated_time="2019-01-01")
    ruling = arbitrate([one, two])
    assert ruling.owner == "owner"
    assert [party.name for party in ruling.commitments()] == ["thief", "owner"]
    first = ruling.to_dict()["commitments"][0]
    assert first == {
        "party": "thief",
        "commitment": THIEF.commitment,
        "time": "2019-01-01T00:00:00+00:00",
        "remark": "as stated, not checked",
    }
    with pytest.raises(DisputeError):
        stated_time("0001-01-01T00:00+14:00")


def test_the_record_tells_all_but_the_keys(owned: Path, stolen: Path) -> None:
    parties = [Claimant("owner", OWNER, owned), Claimant("thief", THIEF, stolen)]
    ruling = arbitrate(parties, disputed=stolen)
    record = json.loads(ruling.to_json())
    assert record == json.loads(json.dumps(ruling.to_dict()))
    assert (record["format"], record["owner"]) == ("neuralmark-ruling/1", "owner")
    assert record["parties"][0]["fingerprint"] == OWNER.fingerprint
    assert set(record["disputed"]["files"]) == {stolen.name}
    for key in (OWNER, THIEF):
        marked = key.at(((BODY, (POOLS, BITS)),))
        packed = np.packbits(marked.bits).tobytes()
        assert key.secret is not None
        for data in (key.secret, key.salt, packed):
            assert data.hex() not in ruling.to_json()
    with pytest.raises(TypeError, match=r"use ruling\.owner"):
        bool(ruling)


# The criterion alone


def parties_of(number: int) -> list[Party]:
    return [
        Party(name, f"nm1-{name}", f"c-{name}", "native", Shown(f"{name}.st"))
        for name in "abcd"[:number]
    ]


@pytest.fixture
def verdicts(owned: Path) -> dict[str, Verdict]:
    """A verdict for each state, from one that was really given."""
    real = verify(owned, OWNER)

    def weaker(matched: int, **changes: str) -> Verdict:
        log2 = bound.bound_log2(BITS, matched, real.trials)
        plain = replace(real, status="not-verified", matched=matched, bound_log2=log2)
        return replace(plain, **changes)  # type: ignore[arg-type]

    found = {
        PRESENT: real,
        TRACES: weaker(145),
        ABSENT: weaker(85),
        UNPROVEN: weaker(160, status="matches-unproven", key_kind="raw"),
    }
    assert {state: state_of(verdict) for state, verdict in found.items()} == {s: s for s in found}
    assert state_of(weaker(145, key_kind="raw")) == UNPROVEN
    assert state_of(weaker(85, status="unprovable")) == ABSENT
    return found


def test_bits_that_do_not_count_are_not_held_against_the_boundary(owned: Path) -> None:
    told = Alignment("00" * 64, 1, (), found=0.03)
    verdict = replace(verify(owned, OWNER), status="not-verified", reason="only 3 % was found")
    for mapping, reason in (("anchor", "only 3 % was found"), ("names", "are needed in")):
        scarce = replace(verdict, mapping=mapping, alignment=told)  # type: ignore[arg-type]
        assert reason in Sighting.of("owner", DISPUTED, scarce).reason


def related(parties: list[Party], value: float = 1.0) -> list[Relation]:
    pairs = itertools.combinations([party.label for party in parties], 2)
    return [Relation(one, two, value, value) for one, two in pairs]


def test_where_absence_ends(verdicts: dict[str, Verdict]) -> None:
    edge = replace(verdicts[TRACES], bound_log2=-64.0)
    assert state_of(edge) == TRACES
    assert state_of(replace(edge, bound_log2=-63.99)) == ABSENT


def test_all_tables_of_two_parties(verdicts: dict[str, Verdict]) -> None:
    """Exactly one kind of table decides, and never for two parties at once."""
    parties = parties_of(2)
    cells = [(p.name, q.label) for p in parties for q in parties]
    for table in itertools.product(verdicts, repeat=4):
        given = {cell: verdicts[state] for cell, state in zip(cells, table, strict=True)}
        ruling = rule(parties, given, related(parties))
        aa, ab, ba, bb = table  # a in a's exhibit, a in b's, b in a's, b in b's
        a_wins = (aa, ab) == (PRESENT, PRESENT) and ba in (ABSENT, UNPROVEN)
        b_wins = (bb, ba) == (PRESENT, PRESENT) and ab in (ABSENT, UNPROVEN)
        assert ruling.owner == ("a" if a_wins else "b" if b_wins else None)
        assert sum(case.complete for case in ruling.cases) == ruling.decided
        assert ruling.reasons


def test_never_two_owners_among_three(verdicts: dict[str, Verdict]) -> None:
    parties = parties_of(3)
    labels = [party.label for party in parties] + [DISPUTED]
    cells = [(party.name, label) for party in parties for label in labels]
    rng, states = np.random.default_rng(0), [PRESENT, ABSENT]
    for third in (1, 0):
        related = zip(parties, (1, 1, third), strict=True)
        relations = [Relation(p.label, DISPUTED, r, r) for p, r in related]
        decided = 0
        for _ in range(4096):
            table = rng.integers(0, 2, len(cells))
            given = {c: verdicts[states[int(i)]] for c, i in zip(cells, table, strict=True)}
            ruling = rule(parties, given, relations, Shown("d.st"))
            assert sum(case.complete for case in ruling.cases) == ruling.decided
            assert ruling.set_aside == (() if third else ("c",))
            decided += ruling.decided
        assert (decided > 20) == bool(third)  # who was set aside may be the author


def test_a_ruling_needs_every_verdict(verdicts: dict[str, Verdict]) -> None:
    parties = parties_of(2)
    given = {(p.name, q.label): verdicts[ABSENT] for p in parties for q in parties}
    with pytest.raises(DisputeError, match="no verdict on the key of 'a' in the disputed model"):
        rule(parties, given, [], Shown("d.st"))
    with pytest.raises(DisputeError, match="same key"):
        rule([parties[0], replace(parties[1], fingerprint="nm1-a")], given, [])


def test_without_relations_everything_is_set_aside(verdicts: dict[str, Verdict]) -> None:
    parties = parties_of(2)
    given = {(p.name, q.label): verdicts[PRESENT] for p in parties for q in parties}
    given["b", parties[0].label] = verdicts[ABSENT]
    assert rule(parties, given, related(parties, RELATED)).owner == "a"
    for relations in ([], related(parties, RELATED - 0.001)):
        ruling = rule(parties, given, relations)
        assert (ruling.owner, ruling.set_aside) == (None, ("a", "b"))


# Relations


def pieces(*arrays: Weights) -> "itertools.chain[Weights]":
    return itertools.chain(arrays)


def test_correlation_is_pearsons_and_does_not_mind_outliers() -> None:
    x, noise = gaussian(50_000, seed=1), gaussian(50_000, seed=2)
    y = 3 * x + 2 * noise + 7
    plain = float(np.corrcoef(x, y)[0, 1])
    assert correlation(pieces(x), pieces(y)) == pytest.approx(plain, abs=0.005)
    split = pieces(y[:11], y[11:40_000], y[40_000:])
    assert correlation(pieces(x[:30_000], x[30_000:]), split) == pytest.approx(plain, abs=0.02)
    spoilt = y.copy()
    spoilt[::500] = 1e9
    spoilt[1::5000] = np.nan
    assert correlation(pieces(x), pieces(spoilt)) > plain - 0.05
    assert abs(correlation(pieces(x), pieces(noise))) < 0.02
    pruned = np.where(np.abs(x) > np.quantile(np.abs(x), 0.9), x, 0).astype(np.float32)
    assert correlation(pieces(x), pieces(pruned)) > 0.5
    constant = np.ones_like(x)
    assert correlation(pieces(x), pieces(constant)) == 0.0
    assert correlation(pieces(), pieces()) == 0.0
    assert correlation(pieces(x * np.float32(np.nan)), pieces(y)) == 0.0


def compared(path: Path, label: str = "m") -> Compared:
    from neuralmark.checkpoints import open_checkpoint

    return Compared(label, open_checkpoint(path))


def test_what_is_alike_in_all_models_is_not_compared(tmp_path: Path) -> None:
    """Norms and other vectors, small tensors; and a mean other than 0 is no likeness."""
    models = []
    for seed in (1, 2):
        tensors: dict[str, npt.NDArray[Any]] = {
            "norm.weight": np.linspace(0, 1, 5000).astype(np.float32),
            "small.weight": np.ones((10, 99), np.float32),
            "positive.weight": 1 + gaussian(200, 100, seed=seed),
            "steps": np.arange(4000).reshape(2, 2000),
        }
        models.append(compared(write(tmp_path / f"{seed}.safetensors", tensors)))
    relation = relate(models[0], models[1])
    assert (relation.tensors, relation.weights) == (1, 20_000)
    assert relation.overall is not None
    assert abs(relation.overall) < 0.05


def test_what_only_one_model_has_counts_as_nothing(tmp_path: Path) -> None:
    shared = {"a.weight": gaussian(100, 100)}
    one = write(tmp_path / "1.safetensors", shared | {"b.weight": gaussian(300, 100, seed=1)})
    two = write(tmp_path / "2.safetensors", shared | {"c.weight": gaussian(301, 100, seed=2)})
    relation = relate(compared(one), compared(two))
    assert relation.overall == pytest.approx(0.25)
    small = write(tmp_path / "3.safetensors", shared)
    assert relate(compared(one), compared(small)).overall == pytest.approx(1.0)
    nothing = write(tmp_path / "4.safetensors", {"v": gaussian(2000)})
    empty = relate(compared(one), compared(nothing))
    assert (empty.overall, empty.correlation, empty.related) == (None, None, False)


def test_number_formats_do_not_matter(owned: Path, tmp_path: Path) -> None:
    half = {name: tensor.astype(np.float16) for name, tensor in load_file(owned).items()}
    save_file(half, tmp_path / "half.safetensors")
    relation = relate(compared(owned), compared(tmp_path / "half.safetensors"))
    assert relation.overall == pytest.approx(1.0, abs=1e-4)


def test_pairs_go_by_name_then_by_order(tmp_path: Path) -> None:
    names = (["a", "b", "c"], ["b", "x", "y"])
    lists = [
        compared(
            write(tmp_path / f"{i}.safetensors", {n: gaussian(100, 100) for n in chosen})
        ).comparable()
        for i, chosen in enumerate(names)
    ]
    pairs = [(a.name, b.name) for a, b in pair(*lists)]
    assert pairs == [("b", "b"), ("a", "x"), ("c", "y")]


def test_the_same_mark_in_models_made_apart_does_not_relate_them(tmp_path: Path) -> None:
    paths = [
        mark(base(tmp_path / f"b{seed}", seed=seed), OWNER, tmp_path / f"m{seed}", strength=3)
        for seed in (1, 50)
    ]
    relation = relate(compared(paths[0]), compared(paths[1]))
    assert relation.overall is not None
    assert abs(relation.overall) < RELATED / 2
