"""The contract of an architecture."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from neuralmark.core.key import PUBLISHED_ROUNDS, TILED, Parameters
from neuralmark.errors import ParameterError

if TYPE_CHECKING:
    from torch import nn

MAX_CLASSES = 1 << 20
InputKind = Literal["image", "text"]


@dataclass(frozen=True)
class Architecture(ABC):
    """A network by name; the fields of a subclass are the options it takes.

    A module that defines one imports torch only inside `make`: listing names stays quick.

    Attributes:
        name: As it is asked for; the file has the same name, with underscores for hyphens.
        title: As it stands in tables.
        tensors: The tensors marked by default; `marked` gives them.
        parameters: What the default key of this architecture has: the paper's.
        input_size: Channels, height and width of an image, or the number of tokens of a text.
        kind: What goes in: "image" or "text".

    Examples:
        >>> from neuralmark import zoo
        >>> network = zoo.architecture("resnet18")
        >>> network.title, network.input_size
        ('ResNet-18', (3, 32, 32))
    """

    name: ClassVar[str]
    title: ClassVar[str]
    tensors: ClassVar[tuple[str, ...]]
    parameters: ClassVar[Parameters] = Parameters(rounds=PUBLISHED_ROUNDS, filter=TILED)
    input_size: ClassVar[tuple[int, ...]] = (3, 32, 32)
    kind: ClassVar[InputKind] = "image"

    @property
    def marked(self) -> tuple[str, ...]:
        """The tensors marked by default, where the default key has carriers enough."""
        return self.tensors

    def build(self, classes: int = 10) -> "nn.Module":
        """A network with fresh weights from torch's generator: seed it first to get the same again.

        Args:
            classes: The number of classes; a language model has none and ignores it.

        Returns:
            The network.

        Raises:
            ParameterError: The number of classes is out of range.

        Examples:
            >>> import torch
            >>> from neuralmark import zoo
            >>> zoo.architecture("digits").build(classes=3)(torch.zeros(2, 1, 8, 8)).shape
            torch.Size([2, 3])
        """
        if isinstance(classes, bool) or not isinstance(classes, int):
            raise ParameterError(f"classes must be a whole number, not {classes!r}")
        if not 1 <= classes <= MAX_CLASSES:
            raise ParameterError(f"classes must be from 1 to {MAX_CLASSES:,}, not {classes}")
        return self.make(classes)

    @abstractmethod
    def make(self, classes: int) -> "nn.Module":
        """Make the network; `build` has checked the number of classes.

        Args:
            classes: The number of classes.

        Returns:
            The network.

        Examples:
            >>> from neuralmark import zoo
            >>> type(zoo.architecture("smallcnn").make(10)).__name__
            'SmallConvNet'
        """
