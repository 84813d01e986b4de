"""Passports in a live network: a private branch over its weights that never ships with it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralmark import schemes
from neuralmark.core.key import Placement
from neuralmark.errors import LiveModelError, ParameterError, PassportMismatchError
from neuralmark.keys.key import Key, checked_key
from neuralmark.marking.attempts import check_claim
from neuralmark.marking.placement import listed
from neuralmark.records import Claim
from neuralmark.training.live import LiveModel
from neuralmark.training.norms import PassportNorm, norms_behind
from neuralmark.training.suspecting import (
    Suspicion,
    drawn_labels,
    layers_in,
    raised_suspicion,
)
from neuralmark.triggers.triggers import Triggers


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
        ParameterError: The key is of a scheme without passports, or is none; or `norms` names
            something else than marked layers.

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
        self._homes = norms_behind(model, self._paths, norms)
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

        Raises:
            PassportMismatchError: A layer or a norm was replaced in the network since.

        Examples:
            >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64))
            >>> key = neuralmark.Key.new(neuralmark.schemes.parameters("deepipr", bits=64))
            >>> neuralmark.Passports(model, key, ["0"])(torch.ones(1, 3, 4, 4)).shape
            torch.Size([1, 64, 2, 2])
        """
        self._require_unchanged()
        if self._installed:
            return self.model(*inputs)
        with self._in_place():
            return self.model(*inputs)

    def install(self) -> None:
        """Put the passports into the network, for good: they ship, as DeepIPR's first version.

        Raises:
            ParameterError: The key's scheme keeps its passports with the owner.
            PassportMismatchError: A layer or a norm was replaced in the network since.

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
        self._require_unchanged()
        for home, norm in zip(self._homes, self.branch, strict=True):
            _put(self.model, home, norm)
        self._installed = True

    def plain(self) -> None:
        """Give the network norms again that do what the passports did; they are gone then.

        Raises:
            PassportMismatchError: A layer or a norm was replaced in the network since.

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
        self._require_unchanged()
        for home, norm in zip(self._homes, self.norms, strict=True):
            _put(self.model, home, norm.folded())
        self._installed = False

    def labels(self, triggers: Triggers | str | Path, classes: int) -> torch.Tensor:
        """The labels that the key gives triggers: hashed last, so that nobody can choose them.

        Args:
            triggers: The inputs, committed to by their digest, or the path of their file.
            classes: How many labels there are.

        Returns:
            A label for each trigger: train the network on them, as DeepIPR's third version does.

        Raises:
            ParameterError: The key is of another version or scheme, or raw, or there are no two
                classes.

        Examples:
            >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64))
            >>> own = {"version": 3}
            >>> chosen = neuralmark.schemes.parameters("deepipr", bits=64, own=own)
            >>> triggers = neuralmark.Triggers.of(torch.ones(5, 3, 4, 4))
            >>> private = neuralmark.Passports(model, neuralmark.Key.new(chosen), ["0"])
            >>> len(private.labels(triggers, 10))
            5
        """
        known = Triggers.given(triggers, self._key)
        return torch.from_numpy(drawn_labels(self._key, self.placement, known, classes))

    def suspicion(
        self, model: nn.Module, triggers: Triggers | str | Path, classes: int
    ) -> Suspicion:
        """Ask any network, from outside, for the labels of the triggers.

        Args:
            model: The suspect, a live torch module; its weights are not looked at.
            triggers: The inputs, or the path of their file.
            classes: How many labels there are.

        Returns:
            How many it gives as the key drew them, and the exact chance of that.

        Raises:
            LiveModelError: The model is no live module: a checkpoint does not say how it runs.
            ParameterError: The key is of another version or scheme, or there are no two classes.
            TriggerMismatchError: It does not take the triggers, or has other classes.
            NonFiniteError: It answers with NaN or infinity.

        Examples:
            >>> layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64)]
            >>> ending = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
            >>> model = torch.nn.Sequential(*layers, *ending)
            >>> own = {"version": 3}
            >>> chosen = neuralmark.schemes.parameters("deepipr", bits=64, own=own)
            >>> triggers = neuralmark.Triggers.of(torch.ones(5, 3, 4, 4))
            >>> private = neuralmark.Passports(model, neuralmark.Key.new(chosen), ["0"])
            >>> private.suspicion(model, triggers, 64).triggers
            5
        """
        return raised_suspicion(model, self._key, self.placement, triggers, classes)

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
            PassportMismatchError: It is a private branch of other layers, of another key, or a
                part of one.
            ParameterError: It is no state dict.

        Examples:
            >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64))
            >>> key = neuralmark.Key.new(neuralmark.schemes.parameters("deepipr", bits=64))
            >>> private = neuralmark.Passports(model, key, ["0"])
            >>> private.load_state_dict(private.state_dict())
            <All keys matched successfully>
        """
        own = self.state_dict()
        _require_tensors(state_dict)
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
        missing = [name for name in own if name not in state_dict] if strict else []
        if missing:
            raise PassportMismatchError(
                f"{len(missing)} of the {len(own)} tensors of this private branch are missing, such"
                f" as {missing[0]!r}: give all that private.state_dict() gave, or pass strict=False"
            )
        return super().load_state_dict(state_dict, strict, assign)

    def _require_unchanged(self) -> None:
        """Refuse a network whose marked layers or norms are others than this branch was made of."""
        for path, home, norm in zip(self._paths, self._homes, self.norms, strict=True):
            expected = {path: norm.layer, home: norm if self._installed else norm.before}
            for name, module in expected.items():
                if _part(self.model, name) is not module:
                    raise PassportMismatchError(
                        f"{name!r} was replaced in the network after this private branch was made,"
                        " which would run without it: make Passports of the network again, and load"
                        " the private state dict into that"
                    )

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
    scheme = schemes.get(checked_key(key).parameters.scheme)
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
    return layers_in(known, names)


def _require_tensors(state: Any) -> None:
    """Refuse what is no state dict, such as the path of one."""
    tables = isinstance(state, Mapping)
    if not tables or not all(isinstance(value, torch.Tensor) for value in state.values()):
        what = "holds other things than tensors" if tables else f"is a {type(state).__name__}"
        raise ParameterError(
            f"expected what private.state_dict() gave, and this {what}: open its file with"
            " torch.load first"
        )


def _part(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:  # nothing there, or no module
        return None


def _put(model: nn.Module, path: str, part: nn.Module) -> None:
    above, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(above), leaf, part)
