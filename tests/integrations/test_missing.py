"""A missing framework is named, with the line that installs it."""

import sys
from importlib import import_module

import pytest

from neuralmark.errors import MissingExtraError


@pytest.mark.parametrize("name", ["accelerate", "lightning", "transformers"])
def test_the_install_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"neuralmark.integrations.{name}", raising=False)
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'neuralmark\[{name}\]'"):
        import_module(f"neuralmark.integrations.{name}")
