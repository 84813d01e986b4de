"""Parts of anchoring: which number of heads is used, and what is said of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from neuralmark import EmbedOptions, Key
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import AnchorError
from neuralmark.marking import anchoring
from neuralmark.marking.anchoring import HEADS_UNKNOWN, remarks
from neuralmark.marking.drafting import plan
from neuralmark.structures.attention import UNKNOWN
from tests.support.models import QUICK, gaussian_model


@pytest.mark.parametrize(("notes", "told"), [((), 0), ((UNKNOWN,), 1), (("y",), 0)])
@pytest.mark.parametrize("more", [(), ("another",)])
def test_unknown_heads_are_told_once(
    notes: tuple[str, ...], more: tuple[str, ...], told: int
) -> None:
    structure = SimpleNamespace(notes=(*more, *notes))
    anchor = cast("Any", SimpleNamespace(skeleton=SimpleNamespace(structure=structure)))
    assert remarks(anchor) == (HEADS_UNKNOWN,) * told
    none = cast("Any", SimpleNamespace(skeleton=SimpleNamespace(structure=None)))
    assert remarks(none) == ()


@pytest.mark.parametrize(("given", "used"), [(0, 8), (4, 4)])
def test_heads_are_the_owners_or_those_of_the_configuration(
    given: int, used: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def build(original: Any, recipe: Any, progress: Any) -> Any:
        made.append(recipe.heads)
        raise AnchorError("enough is known")

    monkeypatch.setattr(anchoring, "heads_of", lambda root: 8)
    monkeypatch.setattr(anchoring, "build", build)
    planned = plan(open_checkpoint(gaussian_model(tmp_path / "m.safetensors")), Key.new(QUICK))
    with pytest.raises(AnchorError, match="enough is known"):
        anchoring.anchored(planned, EmbedOptions(heads=given), None, None)
    assert made == [used]
