"""Triggers: a few inputs, drawn by a key, and the file that they are sealed in."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from neuralmark import schemes
from neuralmark.anchors.chunks import ChunkReader, ChunkWriter, SealedKind
from neuralmark.core.encoding import canonical_json, enc, strict_json
from neuralmark.core.triggers import (
    UNLABELLED,
    Inputs,
    Labels,
    chosen_triggers,
    trigger_digest,
)
from neuralmark.errors import LiveModelError, ParameterError, TriggerError, TriggerMismatchError
from neuralmark.keys.key import Key, checked_key
from neuralmark.storage import files
from neuralmark.triggers.arrays import inputs_of, labels_of
from neuralmark.triggers.inputs import read_inputs

SEALED = SealedKind(
    b"NMTRIGR1", "neuralmark-triggers", "trigger file", TriggerError, TriggerMismatchError
)
MOST = 1 << 28
"""Bytes of all inputs of a set."""
USUAL_ASKED = 40
"""Triggers with labels of the key's: all of ten classes right by luck with a chance of 2^-132."""
_MAX_HEAD = 1 << 12
_SHOWN = 10
_TYPES = {"f": "<f4", "i": "<i8"}


@dataclass(frozen=True, eq=False, repr=False)
class Triggers:
    """Inputs at which a live model is read, with their labels. As secret as the key.

    Attributes:
        inputs: What the model is given, one after the other: float32, or int64 for tokens.
        labels: The class of each; -1 where it has none.

    Raises:
        TriggerError: They are no numbers that a model could take.

    Examples:
        >>> import numpy as np
        >>> triggers = neuralmark.Triggers.of(np.zeros((4, 3)), [0, 0, 1, 1])
        >>> len(triggers), len(triggers.digest)
        (4, 64)
    """

    inputs: Inputs
    labels: Labels

    def __post_init__(self) -> None:
        """Refuse what is no set of inputs."""
        if not isinstance(self.inputs, np.ndarray) or not isinstance(self.labels, np.ndarray):
            raise TriggerError("triggers hold arrays of numpy: make them with Triggers.of")
        if self.inputs.ndim < 1 or not len(self.inputs) or not self.inputs.size:
            raise TriggerError("there are no triggers: give at least one input")
        if self.inputs.dtype not in (np.dtype("<f4"), np.dtype("<i8")):
            raise TriggerError(
                f"triggers must be floating-point numbers or int64, not {self.inputs.dtype}"
            )
        counted = self.labels.dtype == np.int64 and self.labels.shape == (len(self.inputs),)
        if not counted or (self.labels < UNLABELLED).any():
            raise TriggerError("every trigger has one label, a whole number from 0")
        if self.inputs.nbytes > MOST:
            raise TriggerError(f"triggers of over {MOST:,} bytes are not taken: choose fewer")
        if not np.isfinite(self.inputs).all():
            raise TriggerError("the triggers hold NaN or infinity: leave such inputs out")

    @classmethod
    def of(cls, inputs: Any, labels: Any = None) -> "Triggers":
        """Triggers from arrays, of numpy or torch, or lists of numbers.

        Args:
            inputs: What the model is given, one after the other: floating-point numbers (kept in
                float32) or whole numbers of more than a byte (in int64).
            labels: The class of each, a whole number, if they have one.

        Returns:
            The triggers.

        Raises:
            TriggerError: They are no numbers that a model could take.

        Examples:
            >>> neuralmark.Triggers.of([[0.5, 0.25]]).labels.tolist()
            [-1]
        """
        made = inputs_of(inputs)
        count = len(made) if made.ndim else 0
        told = np.full(count, UNLABELLED, np.int64) if labels is None else labels_of(labels)
        return cls(made, told)

    @classmethod
    def draw(
        cls,
        data: "str | Path | Triggers",
        key: Key,
        *,
        count: int | None = None,
        classes: Sequence[int] | None = None,
    ) -> "Triggers":
        """Draw triggers for a key; the same key draws the same of the same data.

        Args:
            data: A .npz or safetensors file with `inputs` (and `labels`), a folder of images with a
                folder for each class, or all inputs as `Triggers`.
            key: A native key of a scheme that reads activations, or of DeepIPR's third version.
            count: How many: of each class where the scheme marks classes, else in all.
            classes: The labels to draw from; by default all that there are.

        Returns:
            The triggers.

        Raises:
            TriggerError: The data cannot be read.
            TriggerMismatchError: There are too few inputs, no labels where they are needed, or as
                many groups as the bits cannot be shared out among.
            LiveModelError: The key's scheme reads weights, and needs no triggers.

        Examples:
            >>> import numpy as np
            >>> signs = neuralmark.Key.new(neuralmark.schemes.parameters("deepsigns"))
            >>> data = neuralmark.Triggers.of(np.eye(6), [0, 0, 0, 1, 1, 1])
            >>> neuralmark.Triggers.draw(data, signs, count=2).labels.tolist()
            [0, 0, 1, 1]
        """
        scheme = schemes.get(checked_key(key).parameters.scheme)
        read = isinstance(scheme, schemes.TriggerScheme)
        if not read and not _asks(scheme, key):
            raise LiveModelError(
                f"{scheme.name} reads weights, and needs no triggers{_but(scheme)}"
            )
        if key.secret is None:
            raise ParameterError("a raw key has no secret to draw triggers with: make a key first")
        inputs, labels = _data(data)
        seed = enc(key.secret) + trigger_digest(inputs, labels)
        taken = chosen_triggers(
            labels,
            seed,
            _usual(scheme, key.parameters.bits) if count is None else count,
            classes,
            each=_by_class(scheme),
        )
        if isinstance(scheme, schemes.TriggerScheme):
            _check_shares(scheme, key.parameters.bits, labels[taken])
        chosen: Any = np.ascontiguousarray(inputs[taken])
        return cls(chosen, labels[taken])

    def __repr__(self) -> str:
        """How many, of which shape and labels, and how their digest begins; no input."""
        named = np.unique(self.labels[self.labels != UNLABELLED]).tolist()
        shown = ", ".join(map(str, named[:_SHOWN])) + (", ..." if len(named) > _SHOWN else "")
        labels = f"labels {shown}" if named else "no labels"
        shape = " x ".join(map(str, self.inputs.shape[1:])) or "one number"
        return f"Triggers({len(self)} of {shape}, {labels}, digest {self.digest.hex()[:16]}...)"

    def __len__(self) -> int:
        """How many there are."""
        return len(self.inputs)

    @cached_property
    def digest(self) -> bytes:
        """64 bytes that stand for them in everything that a mark is derived from."""
        return trigger_digest(self.inputs, self.labels)

    def save(self, path: str | Path, key: Key, *, overwrite: bool = False) -> None:
        """Write them to a file, sealed under the key: whoever has them can train them away.

        Args:
            path: Where to write it.
            key: The key that they are drawn for.
            overwrite: Whether to replace a file that is there.

        Raises:
            ParameterError: The key is raw, or is none.
            OutputError: It cannot be written, or a file is there already.

        Examples:
            >>> triggers = neuralmark.Triggers.of([[0.5, 0.25]])
            >>> triggers.save("one.triggers", key)
            >>> neuralmark.Triggers.load("one.triggers", key).digest == triggers.digest
            True
        """
        sealed = io.BytesIO()
        writer = ChunkWriter(sealed, checked_key(key), SEALED)
        head = {"dtype": self.inputs.dtype.kind, "shape": list(self.inputs.shape)}
        writer.write(enc(canonical_json(head)))
        for array in (self.inputs, self.labels):
            writer.write(np.ascontiguousarray(array, _TYPES[array.dtype.kind]).tobytes())
        writer.finish()
        files.write_bytes(Path(path), sealed.getvalue(), overwrite=overwrite, mode=files.PRIVATE)

    @classmethod
    def load(cls, path: str | Path, key: Key) -> "Triggers":
        """Open a file of triggers and check all of it.

        Args:
            path: The file.
            key: The key that they were sealed under.

        Returns:
            The triggers.

        Raises:
            TriggerError: It is no such file, or was damaged or edited.
            TriggerMismatchError: It is of another key.

        Examples:
            >>> neuralmark.Triggers.of([[0.5, 0.25]]).save("two.triggers", key)
            >>> len(neuralmark.Triggers.load("two.triggers", key))
            1
        """
        reader = ChunkReader(Path(path), checked_key(key), kind=SEALED)
        broken = TriggerError(f"{path}: the trigger file is damaged")
        if reader.size > MOST + (MOST >> 3) or reader.size < 8:
            raise broken
        plain = reader.read(0, reader.size)
        length = int.from_bytes(plain[:8], "little")
        if length > _MAX_HEAD:
            raise broken
        try:
            head = strict_json(plain[8 : 8 + length])
            dtype, shape = np.dtype(_TYPES[head["dtype"]]), tuple(head["shape"])
            if not all(type(each) is int and each >= 0 for each in shape):
                raise ValueError("a bad shape")
            body = plain[8 + length :]
            at = len(body) - 8 * shape[0]
            inputs = np.frombuffer(body[:at], dtype).reshape(shape)
            labels = np.frombuffer(body[at:], "<i8")
        except (ValueError, KeyError, TypeError, IndexError):
            raise broken from None
        return cls(inputs, labels)

    @classmethod
    def given(cls, triggers: Any, key: Key) -> "Triggers":
        """Triggers in any of the forms that callers give them in.

        Args:
            triggers: Triggers, or the path of their file.
            key: The key that the file was sealed under.

        Returns:
            The triggers.

        Raises:
            ParameterError: It is neither.
            TriggerError: The file is none of triggers.

        Examples:
            >>> neuralmark.Triggers.of([[0.5, 0.25]]).save("three.triggers", key)
            >>> len(neuralmark.Triggers.given("three.triggers", key))
            1
        """
        if isinstance(triggers, cls):
            return triggers
        if isinstance(triggers, str | Path):
            return cls.load(triggers, key)
        if triggers is None:
            raise TriggerMismatchError(
                f"{checked_key(key).parameters.scheme} is read at its triggers, and none are given:"
                " give triggers=..., a Triggers or the path of its file"
            )
        raise ParameterError(
            f"triggers must be Triggers or the path of their file, not {type(triggers).__name__}"
        )


def _data(data: Any) -> tuple[Inputs, Labels]:
    """What triggers are drawn from, out of a file or folder, or as it was given."""
    if isinstance(data, Triggers):
        return data.inputs, data.labels
    if not isinstance(data, str | Path):
        raise ParameterError(
            "triggers are drawn from a file, a folder, or all inputs as Triggers.of(inputs,"
            f" labels), not {type(data).__name__}"
        )
    return read_inputs(Path(data))


def _but(scheme: schemes.Scheme) -> str:
    """Which keys of this scheme do take triggers, if some do."""
    asking = scheme.asking if isinstance(scheme, schemes.PassportScheme) else ""
    return f"; its keys made with {asking} take some" if asking else ""


def _asks(scheme: schemes.Scheme, key: Key) -> bool:
    return isinstance(scheme, schemes.PassportScheme) and scheme.asks(key.parameters)


def _by_class(scheme: schemes.Scheme) -> bool:
    return isinstance(scheme, schemes.TriggerScheme) and scheme.labelled


def _check_shares(scheme: schemes.TriggerScheme, bits: int, labels: Labels) -> None:
    groups = scheme.grouping(labels).shape[1]
    if bits % groups:
        what = "classes" if scheme.labelled else "triggers"
        raise TriggerMismatchError(
            f"{bits} bits cannot be shared out evenly among {groups} {what}:"
            f" draw from another number of {what}, or make a key of a multiple of {groups} bits"
        )


def _usual(scheme: schemes.Scheme, bits: int) -> int:
    """How many triggers are drawn unless it is said: at most as many as published, in even shares.

    Classes are as many as there are.
    """
    if not isinstance(scheme, schemes.TriggerScheme):
        return USUAL_ASKED
    counts = range(scheme.usual_count, 0, -1)
    fits = (n for n in counts if not bits % scheme.grouping(np.zeros(n, np.int64)).shape[1])
    return scheme.usual_count if scheme.labelled else next(fits)
