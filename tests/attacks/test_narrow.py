"""Removing channels: which go, what is made up for, and what is left."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuralmark import Key, imprint
from neuralmark.errors import AttackError, ParameterError
from tests.support.models import QUICK

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.attacks.engine.launch import launch  # noqa: E402
from neuralmark.attacks.engine.options import LaunchOptions  # noqa: E402
from neuralmark.attacks.engine.subject import subject_of  # noqa: E402
from neuralmark.attacks.narrow import Narrow  # noqa: E402
from tests.support import architectures as models  # noqa: E402


def outputs(model: Any, inputs: Any) -> Any:
    with torch.no_grad():
        made = model.eval()(inputs)
    return getattr(made, "logits", made)


def calibrated(model: Any, inputs: Any) -> Any:
    """With the statistics that its batch norms find in these inputs."""
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = None
            part.reset_running_stats()
    model.train()
    with torch.no_grad():
        model(inputs)
    return model.eval()


def narrowed(model: Any, share: float, *, compensate: bool = True) -> Any:
    return launch(Narrow(share, compensate), model).model


MAKERS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "cifar": (lambda: models.lived_in(models.CifarResNet()), models.images),
    "basic": (lambda: models.lived_in(models.VisionResNet(bottleneck=False)), models.images),
    "vgg": (lambda: models.lived_in(models.Vgg(norm=True)), models.images),
    "alexnet": (lambda: models.lived_in(models.Vgg(norm=False)), models.images),
    "gpt2": (models.gpt2, models.tokens),
    "llama": (models.llama, models.tokens),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_live_model_of_every_family_still_runs(name: str) -> None:
    make, inputs = MAKERS[name]
    model, given = make(), inputs()
    before = outputs(model, given)
    few, many = (outputs(narrowed(model, share), given) for share in (0.02, 0.5))
    apart = [float((each - before).norm() / before.norm()) for each in (few, many)]
    assert 0 < apart[0] < apart[1]
    assert torch.equal(outputs(model, given), before)


def test_shapes_shrink_by_the_share() -> None:
    table = dict(subject_of(MAKERS["vgg"][0]()).weights)
    new = launch(Narrow(0.25), table).weights
    assert new is not None
    assert new["features.4.weight"].shape == (48, 24, 3, 3)
    assert new["features.5.running_var"].shape == (48,)
    assert new["classifier.1.weight"].shape == (72, 48 * 16)
    assert new["classifier.4.weight"].shape == (10, 72)


def test_what_contributes_nothing_goes_first() -> None:
    model: Any = MAKERS["alexnet"][0]()
    idle = [1, 5, 30]
    with torch.no_grad():
        model.features[3].weight[:, idle] = 0
    given = models.images()
    before = outputs(model, given)
    alone = LaunchOptions(tensors=["features.0.weight"])
    changed: Any = launch(Narrow(3 / 32), model, options=alone).model
    assert changed.features[0].weight.shape[0] == 29
    assert torch.allclose(outputs(changed, given), before, atol=1e-5)


@pytest.mark.parametrize(("name", "most"), [("cifar", 0.9), ("vgg", 0.98)])
def test_making_up_for_what_went_helps(name: str, most: float) -> None:
    given = models.images(64)
    model = calibrated(MAKERS[name][0](), given)
    before = outputs(model, given)
    apart = [
        float((outputs(narrowed(model, 0.25, compensate=c), given) - before).norm())
        for c in (True, False)
    ]
    assert apart[0] < most * apart[1]


def test_the_mark_is_not_where_it_was() -> None:
    model = MAKERS["cifar"][0]()
    key = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)
    claim = imprint(model, key, tensors=["layer3.1.conv1.weight"], strength=1.0).claim
    result = launch(Narrow(0.125), model, key, claim=claim)
    assert result.before is not None
    assert result.before.verified
    assert result.after is None
    assert result.unreadable


def test_one_channel_stays() -> None:
    table = {"0.weight": np.ones((2, 8), np.float32), "2.weight": np.ones((8, 2), np.float32)}
    new = launch(Narrow(0.99), table).weights
    assert new is not None
    assert new["0.weight"].shape == (1, 8)


def test_bad_settings_and_models() -> None:
    with pytest.raises(ParameterError):
        Narrow(1.0)
    with pytest.raises(AttackError, match="hidden channels"):
        launch(
            Narrow(),
            models.llama(),
            options=LaunchOptions(tensors=["model.layers.0.self_attn.q_proj.weight"]),
        )
