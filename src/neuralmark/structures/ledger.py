"""What is known of a network while its graph is walked: whose channels lie along which weights."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from neuralmark.core.names import canonical_name
from neuralmark.structures.book import Book
from neuralmark.structures.spaces import Flow, Space
from neuralmark.structures.structure import OTHER, Producer

if TYPE_CHECKING:
    import torch

_OTHERS = "a layer that reads another number of channels"


class Ledger:
    """Spaces of channels, and the axes of weights along which they lie."""

    def __init__(self, book: Book, module: "torch.nn.Module", reused: set[str]) -> None:
        """Nothing is known yet; `reused` are the modules that are called several times."""
        self._reused = reused
        self._stored = _stored(book, module)
        self._axes: dict[tuple[int, int], Flow | None] = {}
        """What lies along an axis of a weight: one order, however often it is used."""
        self.spaces: list[Space] = []
        self.reason = ""
        """Why channels were left where they are, first of all."""

    def read(self, layer: str, weight: Any, axis: int, flow: Flow | None) -> None:
        """A layer reads the channels along an axis of its weight."""
        names, width = self._stored.get(id(weight), ()), weight.shape[axis]
        if flow is not None and not (names and _fits(flow, width)):
            flow = self.unknown(layer, _OTHERS, [flow])
        self._meet(weight, axis, flow)
        if flow is None:
            return
        for name in names:
            for space, side in flow.sides(name, axis, width // flow.size):
                space.readers[side] = None
        if layer in self._reused:
            flow.passes(OTHER)

    def made(self, layer: str, part: Any, axis: int, form: Flow) -> Flow:
        """What a layer makes: new channels, along an axis of its weight."""
        space = Space(layer, part.weight.shape[axis])
        self.spaces.append(space)
        flow = Flow((space,), form.last, form.spatial, maker=layer, fresh=True)
        names = self._stored.get(id(part.weight), ())
        sides = [side for name in names for _, side in flow.sides(name, axis)]
        bias = self._stored.get(id(getattr(part, "bias", None)), ())
        sides += [side for name in bias for _, side in flow.sides(name, 0)]
        space.makers[layer] = Producer(tuple(sides))
        space.fixed = not names
        self._meet(part.weight, axis, flow)
        if layer in self._reused:
            flow.passes(OTHER)
        return flow

    def ridden(self, layer: str, values: Iterable[Any], flow: Flow) -> Flow | None:
        """Something with a value (or a kernel) for each channel, which moves along."""
        for value in values:
            if not value.ndim or value.numel() == 1:
                continue
            if not _fits(flow, value.shape[0]) or not self.along(value, 0, flow):
                return self.unknown(layer, "values of another size", [flow])
        flow.passes(OTHER)
        return flow.plain()

    def along(self, value: Any, axis: int, flow: Flow) -> bool:
        """Let a tensor move along with the channels; False if it is not among the weights."""
        names = self._stored.get(id(value), ())
        self._meet(value, axis, flow)
        for name in names:
            for space, side in flow.sides(name, axis, value.shape[axis] // flow.size):
                space.riders[side] = None
        return bool(names)

    def pinned(self, weight: Any, axis: int) -> None:
        """What lies along this axis has an order that nobody may change."""
        self._meet(weight, axis, None)

    def unknown(self, node: str, what: str, flows: Sequence[Flow | None]) -> Flow | None:
        """Leave the channels of these values where they are; nothing is known of what follows."""
        touched = [flow for flow in flows if flow is not None]
        for flow in touched:
            flow.fix()
        if touched:
            self.reason = self.reason or f"channels stay where they are at {node!r}: {what}"
        return None

    def _meet(self, weight: Any, axis: int, flow: Flow | None) -> None:
        """What lies along an axis of a weight must be what lay there before."""
        key = (id(weight), axis)
        if key not in self._axes:
            self._axes[key] = flow
            return
        before = self._axes[key]
        if before is not None and flow is not None:
            before.meet(flow, anyhow=True)
        for each in (before, flow):
            if each is not None and None in (before, flow):
                each.fix()


def _fits(flow: Flow, width: int) -> bool:
    """Whether an axis holds all channels; several times only where places lie side by side."""
    size = flow.size
    return size > 0 and width % size == 0 and (width == size or flow.flat)


def _stored(book: Book, module: "torch.nn.Module") -> dict[int, list[str]]:
    """The stored names of each parameter and buffer."""
    found: dict[int, list[str]] = {}
    named: Iterable[tuple[str, Any]] = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    for name, value in named:
        plain = canonical_name(name)
        key = plain if plain in book.shapes else name
        if book.shapes.get(key) == tuple(value.shape):
            found.setdefault(id(value), []).append(book.stored[key])
    return found
