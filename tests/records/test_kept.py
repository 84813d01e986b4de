"""Records outlive the run: what is saved comes back equal, for every kind of verdict there is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import (
    Claim,
    Claimant,
    Key,
    Parameters,
    Ruling,
    Verdict,
    VerifyOptions,
    arbitrate,
    embed,
    verify,
)
from neuralmark.attacks import Card
from neuralmark.attacks.engine.options import SuiteOptions
from neuralmark.attacks.engine.suite import suite
from neuralmark.errors import OutputError, ParameterError, RecordError
from neuralmark.records import PublicVerdict, Record
from neuralmark.reports.recorded import draw
from neuralmark.reports.verdict import verdict_page
from neuralmark.schemes import TriggerScheme, get, names, parameters
from tests.support.claims import without_file
from tests.support.models import QUICK, gaussian, gaussian_model

WHOLE = VerifyOptions(full_digest=True)


def comes_back(record: Record, path: Path) -> None:
    """Assert that a record survives its dictionary and its file."""
    assert type(record).from_dict(record.to_dict()) == record
    record.save(path)
    assert type(record).load(path) == record
    assert path.read_text(encoding="utf-8") == record.to_json()


def verdicts(marked: Path, key: Key, folder: Path) -> dict[str, Verdict]:
    """By what is special about each."""
    claim = f"{marked}.claim.json"
    weights = load_file(marked)
    turned, fewer, packed = (folder / f"{name}.safetensors" for name in ("turned", "less", "int8"))
    save_file({name: np.ascontiguousarray(w.T) for name, w in weights.items()}, turned)
    save_file({name: w for name, w in weights.items() if name != "layer2.weight"}, fewer)
    save_file({name: (100 * w).astype(np.int8) for name, w in weights.items()}, packed)
    raw = Key.raw(gaussian(QUICK.pools, QUICK.bits), 1, "strided", b"")
    short = Key.new(Parameters(64, 128, 1))
    return {
        "search": verify(marked, key),
        "claim": verify(marked, key, claim=claim, options=WHOLE).with_owner("Äcme & Söhne"),
        "names": verify(marked, key, tensors=["layer1.weight"]),
        "transposed": verify(turned, key, claim=without_file(Claim.load(claim))),
        "aligned": verify(turned, key, claim=claim),
        "missing": verify(fewer, key, claim=without_file(Claim.load(claim))),
        "unreadable": verify(packed, key),
        "raw": verify(marked, raw),
        "unprovable": verify(marked, short),
    }


def test_verdicts_of_every_kind_come_back(marked: Path, key: Path, tmp_path: Path) -> None:
    found = verdicts(marked, Key.load(key), tmp_path)
    assert {v.status for v in found.values()} >= {
        *("verified", "not-verified", "unprovable", "unreadable"),
    }
    assert found["transposed"].orientation == "transposed"
    assert found["missing"].missing
    assert found["claim"].claim_digest
    assert found["claim"].sha256
    for name, verdict in found.items():
        comes_back(verdict, tmp_path / f"{name}.json")
        assert draw(tmp_path / f"{name}.json").page == verdict_page(verdict)


LIVE = [name for name in names() if isinstance(get(name), TriggerScheme)]


@pytest.mark.parametrize("scheme", [name for name in names() if name not in LIVE])
def test_verdicts_of_every_scheme_come_back(scheme: str, tmp_path: Path) -> None:
    key = Key.new(parameters(scheme, bits=160))
    model = gaussian_model(tmp_path / "model.safetensors", rows=512)
    verdict = verify(model, key, tensors=["layer1.weight"])
    assert verdict.parameters.scheme == scheme
    comes_back(verdict, tmp_path / "verdict.json")


@pytest.mark.parametrize("scheme", LIVE)
def test_verdicts_on_live_models_come_back(scheme: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from neuralmark import KeyedMemory, Triggers

    own = {"channels": 4, "side": 2} if scheme == "featuremap" else {}
    key = Key.new(parameters(scheme, bits=160, own=own))
    layers: dict[str, Callable[[], Any]] = {
        "deepsigns": lambda: torch.nn.Linear(8, 160),
        "featuremap": lambda: torch.nn.Conv2d(3, 4, 3),
        "lim": lambda: KeyedMemory.of(key, 8, 160),
    }
    shape = (3, 8, 8) if scheme == "featuremap" else (5, 8) if scheme == "lim" else (8,)
    inputs = np.random.default_rng(0).standard_normal((20, *shape)).astype(np.float32)
    triggers = Triggers.draw(Triggers.of(inputs, np.arange(20) % 2), key, count=5)
    model = torch.nn.Sequential(layers[scheme]()).eval()
    verdict = verify(model, key, tensors=["0"], triggers=triggers)
    assert verdict.parameters.scheme == scheme
    assert verdict.bits == 160
    comes_back(verdict, tmp_path / "verdict.json")


def test_the_public_view_is_drawn_but_no_verdict(marked: Path, key: Path, tmp_path: Path) -> None:
    verdict = verify(marked, Key.load(key), options=WHOLE).with_owner("Acme")
    path = tmp_path / "public.json"
    path.write_text(json.dumps(verdict.public_dict()))
    with pytest.raises(RecordError, match=r"public\.json: the public view of a verdict"):
        Verdict.load(path)
    public = PublicVerdict.load(path)
    assert public.to_dict() == verdict.public_dict()
    assert (public.verified, public.rate) == (True, 1.0)
    assert draw(path).page == verdict_page(verdict, public=True)


def test_cards_come_back(marked: Path, key: Path, tmp_path: Path) -> None:
    only = ["noise", "prune", "forge_random", "detect", "finetune"]
    card = suite(marked, Key.load(key), options=SuiteOptions(only=only, jobs=1))
    assert card.skipped
    assert card.looks
    assert any(row.flipped for row in card.rows)
    comes_back(card, tmp_path / "card.json")
    again = Card.load(tmp_path / "card.json")
    assert [row.flip for row in again.rows] == [row.flip for row in card.rows]


def test_rulings_come_back(marked: Path, key: Path, tmp_path: Path) -> None:
    thief, stolen = Key.new(QUICK), tmp_path / "stolen.safetensors"
    embed(marked, thief, stolen)
    other = gaussian_model(tmp_path / "other.safetensors", seed=50)
    parties = [
        Claimant("Acme", Key.load(key), marked, stated_time="2024-05-01T02:00+02:00"),
        Claimant("Bandit", thief, stolen, stated_time="2024-04-01"),
    ]
    decided = arbitrate(parties, disputed=stolen)
    assert decided.owner == "Acme"
    aside = arbitrate([parties[0], Claimant("Bandit", thief, other)])
    assert aside.set_aside
    for name, ruling in (("decided", decided), ("aside", aside)):
        comes_back(ruling, tmp_path / f"{name}.json")
    assert Ruling.load(tmp_path / "decided.json").commitments()[0].name == "Bandit"


def test_saving_replaces_nothing_unasked(marked: Path, key: Path, tmp_path: Path) -> None:
    verdict, path = verify(marked, Key.load(key)), tmp_path / "v.json"
    path.write_text("mine")
    with pytest.raises(OutputError, match="overwrite=True"):
        verdict.save(path)
    assert path.read_text() == "mine"
    verdict.save(path, overwrite=True)
    assert Verdict.load(path) == verdict


def test_other_limits_stay_with_their_ruling(tmp_path: Path) -> None:
    """Should a limit change one day, rulings of today still say what they were ruled by."""
    golden = Path(__file__).parents[1] / "golden" / "release-0.1" / "ruling.json"
    data = json.loads(golden.read_text())
    data |= {"related_from": 0.999, "absent_above_log2": -32.0}
    for relation in data["relations"]:
        relation["related"] = relation["correlation"] >= 0.999
    assert not all(relation["related"] for relation in data["relations"])
    ruling = Ruling.from_dict(data)
    (tmp_path / "r.json").write_text(ruling.to_json())
    page = draw(tmp_path / "r.json").page
    assert "correlation of 0.999 on" in page
    assert "2<sup>−32</sup>" in page


def test_what_is_parsed_by_hand_fails_by_name(marked: Path) -> None:
    told = Claim.load(Path(f"{marked}.claim.json")).to_dict()
    strange: list[Any] = [{}, [], {**told, "version": 9}, {**told, "placement": []}]
    for wrong in strange:
        with pytest.raises(RecordError):
            Claim.from_dict(wrong)
    for name in told:
        with pytest.raises(RecordError, match="claim"):
            Claim.from_dict({member: told[member] for member in told if member != name})
    with pytest.raises(ParameterError, match="'filter' is missing"):
        Parameters.from_dict({"bits": 160})
    with pytest.raises(ParameterError, match="not a table"):
        Parameters.from_dict([])  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="no setting 'votes'"):
        Parameters().setting("votes")
