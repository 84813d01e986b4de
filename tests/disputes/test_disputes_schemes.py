"""Arbitration on models whose mark was really trained over, for every scheme."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import neuralmark
from neuralmark import Claim, Key, schemes
from neuralmark.attacks import Data
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.forge_learn import ForgeLearn
from neuralmark.attacks.overwrite import Overwrite
from neuralmark.disputes import Claimant, Ruling, arbitrate
from tests.support.images import data
from tests.support.schemes import MARKING, STRENGTH, key_of, layers, parameters, trained

Case = tuple[Key, Claim, nn.Module, Data]


@pytest.fixture(scope="module", params=MARKING)
def case(request: pytest.FixtureRequest) -> Case:
    key = key_of(parameters(request.param))
    model = trained(key)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mark = neuralmark.attach(
        model, optimizer, key, options=neuralmark.AttachOptions(tensors=layers(request.param))
    )
    claim = mark.claim()
    mark.detach()
    return key, claim, model, data(10)


def overwritten(case: Case, weight: float, rate: float) -> tuple[nn.Module, Key, Claim]:
    """What the thief made of the owner's model, his key, and his claim."""
    key, claim, model, given = case
    scale = STRENGTH.get(key.parameters.scheme, 1.0)
    attack = Overwrite(weight * scale, rate=rate, epochs=40, batch=16, classifier="keep")
    result = launch(attack, model, key, options=LaunchOptions(seed=3), claim=claim, data=given)
    assert result.model is not None
    assert result.key is not None
    digest = claim.marked_digest
    own = Claim(
        result.key.fingerprint,
        result.key.commitment,
        result.key.parameters,
        claim.placement,
        digest,
    )
    return result.model, result.key, own


def saved(model: nn.Module, path: Path) -> Path:
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    return path


def ruled(case: Case, thief: tuple[nn.Module, Key, Claim], folder: Path) -> Ruling:
    key, claim, model, _ = case
    stolen = saved(thief[0], folder / "thief.safetensors")
    return arbitrate(
        [
            Claimant("owner", key, saved(model, folder / "owner.safetensors"), claim=claim),
            Claimant("thief", thief[1], stolen, claim=thief[2]),
        ],
        disputed=stolen,
    )


def test_the_thief_never_wins_and_the_owner_does_while_his_mark_lasts(
    case: Case, tmp_path: Path
) -> None:
    key, claim, _, _ = case
    for weight, rate in ((1.0, 0.001), (300.0, 0.02)):
        thief = overwritten(case, weight, rate)
        folder = tmp_path / f"{weight:g}"
        folder.mkdir()
        ruling = ruled(case, thief, folder)
        lasts = neuralmark.verify(thief[0], key, claim=claim).verified
        assert ruling.owner == ("owner" if lasts else None), ruling.reasons
        # Every place of a trapdoor's 0 must answer with a minus: a margin of 0.1 does not last.
        fragile = key.parameters.scheme == "trapdoor"
        assert lasts or fragile or weight > 1, "the weak attack must leave the owner's mark"
        assert ruling.reasons


def test_a_learnt_matrix_decides_nothing(case: Case, tmp_path: Path) -> None:
    """The forger matches the owner's model as it is; his key proves nothing."""
    key, claim, model, _ = case
    forged = launch(ForgeLearn(steps=5000), model, key, options=LaunchOptions(seed=4), claim=claim)
    assert forged.key is not None
    own = Claim(
        forged.key.fingerprint,
        forged.key.commitment,
        forged.key.parameters,
        claim.placement,
        claim.marked_digest,
    )
    path = saved(model, tmp_path / "m.safetensors")
    ruling = arbitrate(
        [
            Claimant("owner", key, path, claim=claim),
            Claimant("forger", forged.key, path, claim=own),
        ]
    )
    assert ruling.owner != "forger"


def test_every_scheme_is_in_the_battery() -> None:
    assert set(MARKING) >= {"greedymark", "neuralmark", "vanillamark", "votemark"}
    assert not schemes.get("clean").marks
    assert np.isfinite(list(STRENGTH.values())).all()
