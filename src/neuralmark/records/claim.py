"""Claim: where a key was put into which model (docs/formats.md)."""

import hashlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from neuralmark.core.key import Parameters, Placement
from neuralmark.errors import ParameterError, RecordError
from neuralmark.records.fields import damage, load_json, parse, to_json
from neuralmark.records.parts import (
    ClaimedAnchor,
    Digest,
    anchor_from,
    digest_from,
    placement_from,
    placement_list,
    text,
    triggers_from,
)
from neuralmark.storage import files
from neuralmark.version import __version__

CLAIM_FORMAT = "neuralmark-claim"
MAX_CLAIM = 16 << 20


@dataclass(frozen=True)
class Claim:
    """Record of where a key was put into which model. Never trusted, only followed.

    Attributes:
        fingerprint: Public name of the key.
        commitment: Hiding commitment to the key.
        parameters: What shapes the read-out.
        placement: The marked tensors in order, a canonical name and a shape each.
        marked_digest: SHA-256 of headers and tensors of the marked model.
        source_digest: The same of the model before; None if it is not known.
        library: Version that wrote it.
        anchor: Digest, bits and heads of the anchor that the mark is bound to; None without one.
        triggers: Digest of the triggers, in hexadecimal digits, where activations are read.
        file: Where it was read from or first written to: its anchor lies beside it. No part of the
            record; None if it was in no file.

    Examples:
        >>> claim = Claim.load("marked.safetensors.claim.json")
        >>> claim.fingerprint == key.fingerprint, claim.anchor.bits
        (True, 4)
    """

    fingerprint: str
    commitment: str
    parameters: Parameters
    placement: Placement
    marked_digest: Digest
    source_digest: Digest | None = None
    library: str = __version__
    anchor: ClaimedAnchor | None = None
    triggers: str | None = None
    file: Path | None = field(default=None, compare=False, repr=False)

    def at(self, file: str | Path) -> "Claim":
        """The same claim, which knows where its file is.

        Args:
            file: The file.

        Returns:
            The claim, equal to this one.

        Examples:
            >>> claim = Claim.load("marked.safetensors.claim.json")
            >>> claim.at("elsewhere.claim.json") == claim
            True
        """
        return replace(self, file=Path(file).absolute())

    @property
    def anchor_digest(self) -> bytes:
        """What the derivation takes: the digest of the anchor, or nothing."""
        return b"" if self.anchor is None else self.anchor.bytes

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the claim file.

        Returns:
            Plain values, by name.

        Examples:
            >>> Claim.load("marked.safetensors.claim.json").to_dict()["scheme"]
            'neuralmark'
        """
        told = {
            "format": CLAIM_FORMAT,
            "version": 1,
            "fingerprint": self.fingerprint,
            "commitment": self.commitment,
            "scheme": self.parameters.scheme,
            "parameters": self.parameters.to_dict(),
            "placement": placement_list(self.placement),
            "anchor": asdict(self.anchor) if self.anchor else None,
            "source_digest": asdict(self.source_digest) if self.source_digest else None,
            "marked_digest": asdict(self.marked_digest),
            "library": self.library,
        }
        return told if self.triggers is None else {**told, "triggers": self.triggers}

    def to_json(self) -> str:
        """Readable JSON.

        Returns:
            The text of the claim file, ending in a line break.

        Examples:
            >>> Claim.load("marked.safetensors.claim.json").to_json().splitlines()[1]
            '  "format": "neuralmark-claim",'
        """
        return to_json(self.to_dict())

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the claim file.

        Args:
            path: Where to write it.
            overwrite: Whether to replace a file that is there.

        Raises:
            OutputError: It cannot be written, or a file is there already.

        Examples:
            >>> claim = Claim.load("marked.safetensors.claim.json")
            >>> claim.save("copy.claim.json")
            >>> Claim.load("copy.claim.json") == claim
            True
        """
        files.write_text(Path(path), self.to_json(), overwrite=overwrite, mode=files.PRIVATE)
        if self.file is None:
            object.__setattr__(self, "file", Path(path).absolute())  # no part of the record

    @classmethod
    def given(cls, claim: Any) -> "Claim | None":
        """A claim in any of the forms that callers give it in.

        Args:
            claim: A claim, the path of its file, the parsed content of its file, or None.

        Returns:
            The claim; None for None.

        Raises:
            ParameterError: It is none of these.
            RecordError: The file or its content is not a claim, or damaged.

        Examples:
            >>> Claim.given("marked.safetensors.claim.json").fingerprint == key.fingerprint
            True
        """
        if claim is None or isinstance(claim, cls):
            return claim
        if isinstance(claim, str | Path) and str(claim).strip():
            return cls.load(claim)
        if isinstance(claim, dict):
            try:
                return cls.loads(to_json(claim), "the claim")
            except (TypeError, ValueError):
                raise RecordError("the claim: holds what no claim file can") from None
        raise ParameterError(
            f"claim must be a Claim, the path of one or a parsed one, not {type(claim).__name__}"
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the claim's file, as `sha256sum` prints it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def load(cls, path: str | Path) -> "Claim":
        """Read a claim file; it is checked like any hostile input.

        Args:
            path: The file.

        Returns:
            The claim.

        Raises:
            RecordError: It cannot be read, is not a claim, or damaged.

        Examples:
            >>> [name for name, shape in Claim.load("marked.safetensors.claim.json").placement]
            ['layer1.weight', 'layer2.weight']
        """
        return cls._load(Path(path), links=True)

    @classmethod
    def load_beside(cls, path: Path) -> "Claim":
        """Read a claim found beside a model: nobody named it, so links are not followed.

        Args:
            path: The file.

        Returns:
            The claim.

        Raises:
            RecordError: It cannot be read, is a link, is not a claim, or damaged.

        Examples:
            >>> Claim.load_beside(Path("marked.safetensors.claim.json")).parameters.bits
            160
        """
        return cls._load(path, links=False)

    @classmethod
    def _load(cls, path: Path, *, links: bool) -> "Claim":
        data = load_json(path, "claim", MAX_CLAIM, links=links)
        return cls._parsed(data, str(path)).at(path)

    @classmethod
    def loads(cls, content: bytes | str, where: str) -> "Claim":
        """The claim in the text of a claim file.

        Args:
            content: The text.
            where: Where it is from; every complaint begins with it.

        Returns:
            The claim.

        Raises:
            RecordError: It is not a claim, or damaged.

        Examples:
            >>> claim = Claim.load("marked.safetensors.claim.json")
            >>> Claim.loads(claim.to_json(), "the mail of May 1") == claim
            True
        """
        return cls._parsed(parse(content, where), where)

    @classmethod
    def _parsed(cls, data: Any, where: str) -> "Claim":
        try:
            return cls.from_dict(data)
        except RecordError as error:
            raise RecordError(f"{where}: {error}") from None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Claim":
        """Read back what `to_dict` gave.

        Args:
            data: The parsed content of a claim file.

        Returns:
            The claim.

        Raises:
            RecordError: It is not a claim, or damaged.

        Examples:
            >>> claim = Claim.load("marked.safetensors.claim.json")
            >>> Claim.from_dict(claim.to_dict()) == claim
            True
        """
        if not isinstance(data, dict) or data.get("format") != CLAIM_FORMAT:
            raise RecordError("not a NeuralMark claim")
        if type(data.get("version")) is not int or data["version"] != 1:
            raise RecordError("a claim of an unknown version; update neuralmark")
        with damage("claim"):
            return cls._read(data)

    @classmethod
    def _read(cls, data: dict[str, Any]) -> "Claim":
        source = data["source_digest"]
        parameters = Parameters.from_dict(data["parameters"])
        if data["scheme"] != parameters.scheme:
            raise ValueError("its two schemes differ")
        return cls(
            fingerprint=text(data["fingerprint"]),
            commitment=text(data["commitment"]),
            parameters=parameters,
            placement=placement_from(data["placement"]),
            marked_digest=digest_from(data["marked_digest"]),
            source_digest=None if source is None else digest_from(source),
            library=text(data["library"]),
            anchor=anchor_from(data["anchor"]),
            triggers=triggers_from(data.get("triggers")),
        )
