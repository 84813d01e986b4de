"""Channels of a network while it is walked: which of them are one, who makes and who reads them.

A `Space` is a set of channels. Where two values are added or multiplied, their channels are one
space from then on. A space that something unknown looks at is *fixed*: its channels stay where they
are, which never changes a function.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from neuralmark.structures.structure import (
    HIDDEN,
    LINEAR,
    OTHER,
    RELU,
    STREAM,
    Activation,
    Group,
    Producer,
    Side,
)

_ORDER: tuple[Activation, ...] = (LINEAR, RELU, OTHER)


@dataclass(eq=False)
class Space:
    """Channels that move together; `root` leads to the one that it was joined with."""

    name: str
    size: int
    makers: dict[str, Producer] = field(default_factory=dict)
    """By layer."""
    readers: dict[Side, None] = field(default_factory=dict)
    riders: dict[Side, None] = field(default_factory=dict)
    activation: Activation = LINEAR
    fixed: bool = False
    rigid: bool = False
    joined: "Space | None" = None

    @property
    def root(self) -> "Space":
        """The space that this one is a part of now."""
        found = self
        while found.joined is not None:
            found = found.joined
        return found

    def join(self, other: "Space") -> None:
        """Make one of two; what is between them need not let factors pass."""
        one, two = self.root, other.root
        if one is two:
            return
        two.joined = one
        one.fixed = one.fixed or two.fixed or one.size != two.size
        one.rigid = one.rigid or two.rigid
        one.makers |= two.makers
        one.readers |= two.readers
        one.riders |= two.riders
        one.activation = OTHER

    def passes(self, activation: Activation) -> None:
        """Something acts on each of its channels alone, and lets only such factors pass."""
        root = self.root
        root.activation = max(root.activation, activation, key=_ORDER.index)

    def group(self) -> Group:
        """As a part of the map."""
        made = {side: None for maker in self.makers.values() for side in maker.all_sides()}
        readers = [side for side in self.readers if side not in made]
        riders = [side for side in self.riders if side not in made and side not in self.readers]
        several, tied = len(self.makers) > 1, len(readers) < len(self.readers)
        return Group(
            self.name,
            self.size,
            tuple(self.makers.values()),
            tuple(readers),
            tuple(riders),
            kind=STREAM if several else HIDDEN,
            activation=OTHER if several or tied else self.activation,
            movable=not self.fixed and bool(self.readers),
            rigid=self.rigid or bool(riders),
        )


@dataclass(frozen=True)
class Flow:
    """A value between two operations: whose channels lie one after the other along its axis."""

    spaces: tuple[Space, ...]
    last: bool
    """Whether the channels lie along the last axis; if not, along the second."""
    spatial: int | None = None
    """How many axes of places there are: 2 for images, 0 for vectors; None where not known."""
    flat: bool = False
    """Whether the places of a channel were laid side by side along the channels' axis."""
    maker: str = ""
    """The layer that made it, as long as nobody else has looked at what it made."""
    fresh: bool = False
    """Whether nothing but linear operations lies between the layer and here."""

    @property
    def size(self) -> int:
        """How many channels there are."""
        return sum(space.root.size for space in self.spaces)

    def roots(self) -> tuple[Space, ...]:
        """Its spaces as they are now."""
        return tuple(space.root for space in self.spaces)

    def fix(self) -> None:
        """Its channels stay where they are."""
        for space in self.roots():
            space.fixed = True

    def sides(self, tensor: str, axis: int, block: int = 1) -> Iterator[tuple[Space, Side]]:
        """Where each space lies along an axis of a tensor that holds all of them."""
        at = 0
        for space in self.roots():
            space.rigid = space.rigid or len(self.spaces) > 1
            yield space, Side(tensor, axis, block, at)
            at += space.size * block

    def passes(self, activation: Activation) -> None:
        """Something acts on each of its channels alone, and lets only such factors pass."""
        for space in self.roots():
            space.passes(activation)

    def alike(self, other: "Flow") -> bool:
        """Whether channel for channel they can be one."""
        one, two = ([space.size for space in flow.roots()] for flow in (self, other))
        forms = [(flow.last, flow.flat) for flow in (self, other)]
        return one == two and forms[0] == forms[1]

    def meet(self, other: "Flow", *, anyhow: bool = False) -> "Flow":
        """What comes of adding or multiplying them; `anyhow`: their axes may differ.

        What does not match stays where it is.
        """
        sizes = [[space.size for space in flow.roots()] for flow in (self, other)]
        if sizes[0] != sizes[1] or not (anyhow or self.alike(other)):
            self.fix()
            other.fix()
            return self.plain()
        for one, two in zip(self.spaces, other.spaces, strict=True):
            one.join(two)
        self.passes(OTHER)
        spatial = self.spatial if self.spatial == other.spatial else None
        return Flow(self.spaces, self.last, spatial, self.flat)

    def plain(self) -> "Flow":
        """Without its maker."""
        return replace(self, maker="", fresh=False)

    def behind(self, *, linear: bool) -> "Flow":
        """Behind something that acts on each channel alone."""
        return replace(self, fresh=self.fresh and linear)

    def formed(self, *, last: bool, spatial: int, flat: bool) -> "Flow":
        """With its axes in another order, or fewer of them."""
        return replace(self, last=last, spatial=spatial, flat=flat)


def groups_of(spaces: Iterable[Space]) -> tuple[Group, ...]:
    """All that have channels which something of the network makes."""
    roots = dict.fromkeys(space.root for space in spaces)
    return tuple(root.group() for root in roots if root.makers)
