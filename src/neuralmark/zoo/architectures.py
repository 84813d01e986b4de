"""The contract of an architecture."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from neuralmark.core.key import PUBLISHED_ROUNDS, TILED, Parameters
from neuralmark.errors import ParameterError

if TYPE_CHECKING:
    from torch import nn

MAX_CLASSES = 1 << 20


@dataclass(frozen=True)
class Architecture(ABC):
    """A network by name; the fields of a subclass are the options it takes.

    A module that defines one imports torch only inside `make`: listing names stays quick.
    """

    name: ClassVar[str]
    """As it is asked for; the file is called so too (a hyphen is an underscore there)."""
    title: ClassVar[str]
    """As it stands in tables."""
    tensors: ClassVar[tuple[str, ...]]
    """The tensors marked by default; `marked` gives them."""
    parameters: ClassVar[Parameters] = Parameters(rounds=PUBLISHED_ROUNDS, filter=TILED)
    """What the default key of this architecture has: the paper's."""
    input_size: ClassVar[tuple[int, ...]] = (3, 32, 32)
    """Channels, height and width of an image, or the number of tokens of a text."""
    kind: ClassVar[str] = "image"
    """What goes in: "image" or "text"."""

    @property
    def marked(self) -> tuple[str, ...]:
        """The tensors marked by default, where the default key has carriers enough."""
        return self.tensors

    def build(self, classes: int = 10) -> "nn.Module":
        """A network with fresh weights from torch's generator: seed it first to have them again.

        A language model has no classes: the number means nothing there.
        """
        if isinstance(classes, bool) or not isinstance(classes, int):
            raise ParameterError(f"classes must be a whole number, not {classes!r}")
        if not 1 <= classes <= MAX_CLASSES:
            raise ParameterError(f"classes must be from 1 to {MAX_CLASSES:,}, not {classes}")
        return self.make(classes)

    @abstractmethod
    def make(self, classes: int) -> "nn.Module":
        """Make the network; `build` has checked the number of classes."""
