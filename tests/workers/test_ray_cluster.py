"""A Ray cluster that carries out one function."""

import sys

import pytest

from neuralmark.errors import MissingExtraError
from neuralmark.workers.ray_cluster import RayCluster


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'neuralmark\[ray\]'"):
        RayCluster(print, 1)
