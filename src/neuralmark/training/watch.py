"""What goes on around a mark in training: earlier marks, other optimizers, averages, freezing."""

import gc
import re
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from neuralmark.errors import NeuralMarkWarning, UnsuitableTensorError
from neuralmark.training.layout import first_told
from neuralmark.training.site import Site
from neuralmark.training.sources import Direct, WeightSource

if TYPE_CHECKING:
    from neuralmark.training.handle import LiveMark

_AVERAGE = re.compile(r"EMA|Ema(?![a-z])|Averaged")
"""Names of classes that average weights: torch's AveragedModel, timm's ModelEmaV3, …"""


class _Entry:
    """A mark in training, and its optimizer; neither is kept alive."""

    def __init__(self, live: "LiveMark", fingerprint: str, optimizer: object) -> None:
        self.fingerprint = fingerprint
        self.live, self.optimizer = weakref.ref(live), weakref.ref(optimizer)


_attached: dict[torch.Tensor, list[_Entry]] = WeakTensorKeyDictionary()  # type: ignore[assignment]
"""Which keys are being trained into which parameters."""


def register(
    live: "LiveMark", site: Site, optimizer: torch.optim.Optimizer
) -> list[Callable[[], None]]:
    """Remember this mark; one of the same key here before makes way. Gives what forgets it."""
    parameters = [tensor for source in site.sources for tensor in source.parameters()]
    if len({id(tensor) for tensor in parameters}) < len(parameters):
        raise UnsuitableTensorError("two of these tensors are tied (one parameter): name one only")
    fingerprint = site.key.fingerprint
    for tensor in parameters:
        for entry in list(_attached.get(tensor, [])):
            if entry.fingerprint == fingerprint:
                _make_way(entry)
                _attached[tensor] = [e for e in _attached[tensor] if e is not entry]
    undo: list[Callable[[], None]] = []
    for tensor in parameters:
        entry = _Entry(live, fingerprint, optimizer)
        _attached.setdefault(tensor, []).append(entry)
        undo.append(partial(_forget, weakref.ref(tensor), entry))
    return undo


def _forget(of: "weakref.ref[torch.Tensor]", entry: _Entry) -> None:
    tensor = of()
    if tensor is not None and entry in _attached.get(tensor, []):
        _attached[tensor].remove(entry)


def _make_way(entry: _Entry) -> None:
    """An interrupted training, or one whose optimizer is gone, never blocks the next."""
    earlier = entry.live()
    if earlier is None:
        return
    working = entry.optimizer() is not None
    earlier.detach()
    if working:
        warnings.warn(
            "this key was attached to these tensors already: that mark was detached, and this one"
            " takes its place",
            NeuralMarkWarning,
            stacklevel=4,
        )


class Company:
    """Whether other processes mark replicas of a plain module with another key: asked once.

    A module that knows who shares it (DDP, DTensor) was asked about when it was attached to. A
    plain one may be wrapped later, or before torch.distributed begins.
    """

    def __init__(self, site: Site) -> None:
        """Nothing is asked yet."""
        self._site = site
        self._asked = bool(site.model.peers())

    def compare(self) -> None:
        """Warn where the first process to come has another key."""
        if self._asked or not (dist.is_available() and dist.is_initialized()):
            return
        self._asked = True
        mine = self._site.key.fingerprint
        if first_told(repr(self._site.placement), mine) != mine:
            warnings.warn(
                "another process marks tensors of these names with another key: if they are"
                " replicas of one model, give every process the same key file (given the model"
                " wrapped in DDP, attach compares them and refuses)",
                NeuralMarkWarning,
                stacklevel=4,
            )


class _Watch:
    """What one mark must not see stepped by others."""

    def __init__(self, marked: set[int], optimizer: torch.optim.Optimizer) -> None:
        self.marked, self.own = marked, weakref.ref(optimizer)
        self.others = 0
        """Steps that other optimizers took since."""
        self.innocent: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet([optimizer])

    def meets(self, stepped: torch.optim.Optimizer) -> bool:
        """Whether an optimizer that steps trains the marked weights and is another's."""
        if stepped in self.innocent:
            return False
        ours = self.own()
        inside = ours is not None and any(value is stepped for value in vars(ours).values())
        stepping = (id(tensor) for group in stepped.param_groups for tensor in group["params"])
        if not inside and any(tensor in self.marked for tensor in stepping):
            return True
        self.innocent.add(stepped)
        return False


_watches: "weakref.WeakKeyDictionary[LiveMark, _Watch]" = weakref.WeakKeyDictionary()
_hooked: list[Any] = []
"""The one hook on all optimizers, once a mark was attached."""


def watch_others(
    live: "LiveMark", site: Site, optimizer: torch.optim.Optimizer
) -> Callable[[], None]:
    """Say once when another optimizer steps the marked weights: its steps do not keep the mark.

    Gives what ends the watch.
    """
    marked = {id(tensor) for source in site.sources for tensor in source.parameters()}
    _watches[live] = _Watch(marked, optimizer)
    if not _hooked:
        _hooked.append(register_optimizer_step_post_hook(_look))
    return partial(_unwatch, weakref.ref(live))


def warn_of_copies(live: "LiveMark") -> None:
    """Say so when others stepped and the mark's own optimizer never did: a copy was trained."""
    watch = _watches.get(live)
    if watch is not None and watch.others:
        warnings.warn(
            "the optimizer that this mark is attached to took no step, and others did: was a copy"
            " of the model trained?",
            NeuralMarkWarning,
            stacklevel=3,
        )


def _unwatch(of: "weakref.ref[LiveMark]") -> None:
    live = of()
    if live is not None:
        _watches.pop(live, None)


def _look(stepped: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    for watch in list(_watches.values()):
        watch.others += stepped is not watch.own()
        if watch.meets(stepped):
            watch.innocent.add(stepped)
            warnings.warn(
                "another optimizer than the one the mark is attached to trains the marked weights"
                " (a new one, or a copy): its steps do not keep the mark; attach to that one",
                NeuralMarkWarning,
                stacklevel=4,
            )


def warn_of_averages(site: Site, names: Sequence[str]) -> None:
    """Averages of the weights that began before the mark hold weights without it."""
    marked = {(_end(name), shape) for name, (_, shape) in zip(names, site.placement, strict=True)}
    own = {id(module) for module in site.model.module.modules()}
    for found in gc.get_objects():
        kind = type(found)
        if not issubclass(kind, torch.nn.Module) or not _AVERAGE.search(kind.__name__):
            continue
        held = found.state_dict() if id(found) not in own else {}
        if any((_end(name), tuple(value.shape)) in marked for name, value in _tensors(held)):
            warnings.warn(
                f"an average of these weights ({kind.__name__}) was begun before the mark: for a"
                " while it holds weights without it; begin it after attach, and verify what you"
                " save",
                NeuralMarkWarning,
                stacklevel=4,
            )
            return


def _tensors(state: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    return [(name, value) for name, value in state.items() if isinstance(value, torch.Tensor)]


def _end(name: str) -> str:
    return ".".join(name.split(".")[-2:])


class Freezing:
    """Which of the marked tensors trained when the mark was attached and no longer do."""

    def __init__(self, sources: Sequence[WeightSource]) -> None:
        """The sources as they are when the mark is attached."""
        self._trained = [source for source in sources if trains(source)]
        self._said = False

    def frozen(self) -> list[WeightSource]:
        """Those that were frozen since; the first time that there are any, it is said."""
        frozen = [source for source in self._trained if not trains(source)]
        if frozen and not self._said:
            self._said = True
            warnings.warn(
                f"{frozen[0].name!r} was frozen: the mark is not kept in it until it trains again",
                NeuralMarkWarning,
                stacklevel=5,
            )
        return frozen


def trains(source: WeightSource) -> bool:
    """Whether gradients reach the weights that a source stands for."""
    if isinstance(source, Direct) and source.mirror is not None:
        return source.mirror.requires_grad
    return any(tensor.requires_grad for tensor in source.parameters())
