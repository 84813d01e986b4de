"""Passports in a live network: a private branch over its weights that never ships with it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralmark import schemes
from neuralmark.core.key import Placement, Terms
from neuralmark.core.suspicion import hashed_labels, luck_log2
from neuralmark.errors import (
    LiveModelError,
    ParameterError,
    PassportMismatchError,
    TriggerMismatchError,
    UnknownTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.attempts import check_claim
from neuralmark.marking.placement import listed, placement_of, select
from neuralmark.records import Claim
from neuralmark.training.activations import inputs_for, refusing
from neuralmark.training.derived import at_rest
from neuralmark.training.live import LiveModel
from neuralmark.training.norms import PassportNorm, norm_behind
from neuralmark.triggers.triggers import Triggers


@dataclass(frozen=True)
class Suspicion:
    """What a network says to triggers whose labels a key drew: reason to look inside.

    Attributes:
        matched: Triggers that get the key's label.
        triggers: How many there are.
        classes: How many labels each could get.
        luck_log2: log2 of the chance of as many by luck, exactly.

    Examples:
        >>> Suspicion(2, 2, 4, -4.0).rate
        1.0
    """

    matched: int
    triggers: int
    classes: int
    luck_log2: float

    @property
    def rate(self) -> float:
        """Share of the triggers that get the key's label."""
        return self.matched / self.triggers


class Passports(nn.Module):
    """The private branch of a network: its norms' factors made from passports.

    Called with inputs, it runs the network with the norms behind the named layers replaced; the
    network itself stays as it is, and so does its state dict. Its own parameters (the MLPs of the
    schemes that have some) and statistics are this module's: give them to the optimizer, save its
    state dict, and keep that with the key. The accuracy of the private branch is worth a look and
    proves nothing; the bits are read by `neuralmark.verify`, from the weights alone.

    Passports of DeepIPR's first version do ship: `install` puts them into the network, and `plain`
    gives it norms again that do the same.

    Args:
        model: The network, a live torch module.
        key: A key of a passport scheme.
        layers: Names of the layers that make passports into factors.
        claim: Of a mark in this network, instead of `layers`.
        norms: The norm behind each layer, by name, where it is not the next one in the network.

    Attributes:
        placement: The weights of the layers in order, canonical name and shape.
        branch: The norms of the private branch, layer by layer.

    Raises:
        LiveModelError: The model is no live module: a checkpoint does not say how it runs.
        MissingNormError: A layer has no norm behind it, or the network has none.
        ParameterError: The key is of a scheme without passports.

    Examples:
        >>> layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
        >>> model = torch.nn.Sequential(*layers)
        >>> chosen = neuralmark.schemes.parameters("passport-aware", bits=64)
        >>> private = neuralmark.Passports(model, neuralmark.Key.new(chosen), ["0"])
        >>> private(torch.ones(2, 3, 8, 8)).shape, private.tensors
        (torch.Size([2, 64, 6, 6]), ['0.weight'])
    """

    def __init__(
        self,
        model: nn.Module,
        key: Key,
        layers: Sequence[str] | str | None = None,
        *,
        claim: Claim | str | Path | None = None,
        norms: Mapping[str, str] | None = None,
    ) -> None:
        """Derive the passports of every layer; nothing in the network changes."""
        super().__init__()
        scheme = _scheme_of(key)
        if not isinstance(model, nn.Module):
            raise LiveModelError(
                f"the private branch of {scheme.name} runs the network, and a checkpoint does not"
                " say how: load it into its module in Python, and give that"
            )
        known = Claim.given(claim)
        self.placement = _placement(model, key, layers, known)
        anchor = b"" if known is None or known.anchor is None else known.anchor.bytes
        mark = key.at(self.placement, anchor)
        self._key, self._scheme, self._model = key, scheme, (model,)
        self._paths = [self._path(name) for name, _ in self.placement]
        chosen = {path: norm_behind(model, path, norms or {}) for path in self._paths}
        self._homes = [chosen[path] for path in self._paths]
        made = scheme.passports_of(mark, self.placement)
        self.branch = nn.ModuleList(
            PassportNorm(model.get_submodule(path), model.get_submodule(home), scheme, passports)
            for path, home, passports in zip(self._paths, self._homes, made, strict=True)
        )
        self._installed = False

    @property
    def tensors(self) -> list[str]:
        """Names of the marked tensors, as `AttachOptions(tensors=...)` takes them."""
        return [f"{path}.weight" for path in self._paths]

    @property
    def norms(self) -> list[PassportNorm]:
        """The norms of the private branch, layer by layer."""
        return [norm for norm in self.branch if isinstance(norm, PassportNorm)]

    @property
    def plain_norms(self) -> list[Any]:
        """The norms of the network that they take the place of."""
        return [norm.before for norm in self.norms]

    @property
    def model(self) -> nn.Module:
        """The network that this is a branch of."""
        return self._model[0]

    def forward(self, *inputs: Any) -> Any:
        """What the network gives out under passports.

        Args:
            inputs: What the network takes.

        Returns:
            What it gives.

        Examples:
            >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64))
            >>> key = neuralmark.Key.new(neuralmark.schemes.parameters("deepipr", bits=64))
            >>> neuralmark.Passports(model, key, ["0"])(torch.ones(1, 3, 4, 4)).shape
            torch.Size([1, 64, 2, 2])
        """
        if self._installed:
            return self.model(*inputs)
        with self._in_place():
            return self.model(*inputs)

    def install(self) -> None:
        """Put the passports into the network, for good: they ship, as DeepIPR's first version.

        Raises:
            ParameterError: The key's scheme keeps its passports with the owner.

        Examples:
            >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64))
            >>> own = {"version": 1}
            >>> chosen = neuralmark.schemes.parameters("deepipr", bits=64, own=own)
            >>> neuralmark.Passports(model, neuralmark.Key.new(chosen), ["0"]).install()
            >>> type(model[1]).__name__
            'PassportNorm'
        """
        if not self._scheme.ships(self._key.parameters):
            raise ParameterError(
                f"{self._scheme.name} keeps its passports with the owner: call the branch itself;"
                " only deepipr with version=1 ships them"
            )
        for home, norm in zip(self._homes, self.branch, strict=True):
            _put(self.model, home, norm)
        self._installed = True

    def plain(self) -> None:
        """Give the network norms again that do what the passports did; they are gone then.

        Examples:
            >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64))
            >>> own = {"version": 1}
            >>> chosen = neuralmark.schemes.parameters("deepipr", bits=64, own=own)
            >>> private = neuralmark.Passports(model, neuralmark.Key.new(chosen), ["0"])
            >>> private.install()
            >>> private.plain()
            >>> type(model[1]).__name__
            'BatchNorm2d'
        """
        if not self._installed:
            return
        for home, norm in zip(self._homes, self.norms, strict=True):
            _put(self.model, home, norm.folded())
        self._installed = False

    def labels(self, triggers: Triggers, classes: int) -> torch.Tensor:
        """The labels that the key gives triggers: hashed last, so that nobody can choose them.

        Args:
            triggers: The inputs, committed to by their digest.
            classes: How many labels there are.

        Returns:
            A label for each trigger: train the network on them, as DeepIPR's third version does.

        Raises:
            ParameterError: The key is raw, or there are no two classes.

        Examples:
            >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64))
            >>> key = neuralmark.Key.new(neuralmark.schemes.parameters("deepipr", bits=64))
            >>> triggers = neuralmark.Triggers.of(torch.ones(5, 3, 4, 4))
            >>> len(neuralmark.Passports(model, key, ["0"]).labels(triggers, 10))
            5
        """
        if self._key.secret is None or classes < 2:
            raise ParameterError("labels are drawn by a key with a secret, among two or more")
        terms = Terms(
            self._key.parameters, self.placement, self._key.content, triggers=triggers.digest
        )
        seed = terms.transcript(f"neuralmark/labels/1/{classes}".encode(), self._key.secret)
        return torch.from_numpy(hashed_labels(seed, len(triggers), classes))

    @torch.no_grad()
    def suspicion(self, model: nn.Module, triggers: Triggers, classes: int) -> Suspicion:
        """Ask any network, from outside, for the labels of the triggers.

        Args:
            model: The suspect; its weights are not looked at.
            triggers: The inputs.
            classes: How many labels there are.

        Returns:
            How many it gives as the key drew them, and the exact chance of that.

        Raises:
            ParameterError: Fewer than two classes.
            TriggerMismatchError: It does not take the triggers, or has other classes.

        Examples:
            >>> layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64)]
            >>> ending = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
            >>> model = torch.nn.Sequential(*layers, *ending)
            >>> key = neuralmark.Key.new(neuralmark.schemes.parameters("deepipr", bits=64))
            >>> triggers = neuralmark.Triggers.of(torch.ones(5, 3, 4, 4))
            >>> private = neuralmark.Passports(model, key, ["0"])
            >>> private.suspicion(model, triggers, 64).triggers
            5
        """
        labels = self.labels(triggers, classes)
        given = inputs_for(model, triggers)
        with refusing(given), at_rest(model):
            answers = model(given)
        if not isinstance(answers, torch.Tensor) or answers.shape != (len(given), classes):
            what = tuple(answers.shape) if isinstance(answers, torch.Tensor) else "no tensor"
            raise TriggerMismatchError(
                f"the model answers {len(given)} triggers with {what}, not with a score for each"
                f" of {classes} classes: give a classifier, and as many classes as it has"
            )
        matched = int((answers.argmax(1).cpu() == labels).sum())
        return Suspicion(
            matched, len(triggers), classes, luck_log2(len(triggers), matched, classes)
        )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As torch does; a private branch of other layers or another key is named as such.

        Args:
            state_dict: What `state_dict` gave.
            strict: Whether every name has to be there.
            assign: Whether tensors are taken as they are.

        Returns:
            The names that were missing, and those that were not expected.

        Raises:
            PassportMismatchError: It is a private branch of other layers, or of another key.

        Examples:
            >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64))
            >>> key = neuralmark.Key.new(neuralmark.schemes.parameters("deepipr", bits=64))
            >>> private = neuralmark.Passports(model, key, ["0"])
            >>> private.load_state_dict(private.state_dict())
            <All keys matched successfully>
        """
        own = self.state_dict()
        for name, value in state_dict.items():
            there = own.get(name)
            if there is None or there.shape != value.shape:
                raise PassportMismatchError(
                    f"this private branch has {name!r} of shape {tuple(value.shape)}, and the"
                    f" layers here ({', '.join(self._paths)}) have not: give that of these layers"
                )
            passport = name.endswith((".scale", ".offset"))
            if passport and not torch.equal(value.to(there), there):
                raise PassportMismatchError(
                    "these passports are not those that the key makes for these layers: give the"
                    " key and the layers that they were made with"
                )
        return super().load_state_dict(state_dict, strict, assign)

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """The norms replaced, for a while."""
        model = self.model
        plain = [model.get_submodule(home) for home in self._homes]
        for home, norm in zip(self._homes, self.branch, strict=True):
            norm.train(model.training)
            _put(model, home, norm)
        try:
            yield
        finally:
            for home, norm in zip(self._homes, plain, strict=True):
                _put(model, home, norm)

    def _path(self, name: str) -> str:
        """The module that holds a marked tensor, as the network names it."""
        stored = {tensor.name: tensor.info.name for tensor in LiveModel(self.model).tensors()}
        return stored[name].rpartition(".")[0]


def _scheme_of(key: Key) -> schemes.PassportScheme:
    scheme = schemes.get(key.parameters.scheme)
    if not isinstance(scheme, schemes.PassportScheme):
        known = [n for n in schemes.names() if isinstance(schemes.get(n), schemes.PassportScheme)]
        raise ParameterError(
            f"{scheme.name} has no passports: make a key of {', '.join(known[:-1])} or {known[-1]}"
        )
    return scheme


def _placement(
    model: nn.Module, key: Key, layers: Sequence[str] | str | None, claim: Claim | None
) -> Placement:
    """The weights of the layers in order, as `attach` lays them out."""
    known = LiveModel(model).tensors()
    if claim is not None:
        check_claim(claim, key)
        shapes = {tensor.name: tensor.info.shape for tensor in known}
        for name, shape in claim.placement:
            if shapes.get(name) != shape:
                raise PassportMismatchError(
                    f"the claim's passports are for {name!r} of shape {shape}, and this network has"
                    f" {shapes.get(name, 'no such layer')}: give the network that was marked"
                )
        return claim.placement
    names = listed(layers)
    if not names:
        raise ParameterError('name the layers that take passports: layers=["layer4.0.conv1"]')
    stored = {tensor.info.name for tensor in known} | {tensor.name for tensor in known}
    wanted = [name if name in stored else f"{name}.weight" for name in names]
    for name in wanted:
        if not name.endswith("weight"):
            raise UnknownTensorError(f"{name!r} is no layer's weight: name layers")
    return placement_of(select(known, wanted))


def _put(model: nn.Module, path: str, part: nn.Module) -> None:
    above, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(above), leaf, part)
