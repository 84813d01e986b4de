"""CopyRegister: which buyer got which file (docs/formats.md)."""

import re
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from neuralmark.core.key import Parameters, Placement
from neuralmark.core.subkeys import plain_label
from neuralmark.records.fields import Fields, Record
from neuralmark.records.parts import (
    ClaimedAnchor,
    Digest,
    anchor_from,
    digest_from,
    placement_from,
    placement_list,
)
from neuralmark.version import __version__

COPIES_FORMAT = "neuralmark-copies/1"

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class IssuedCopy:
    """The copy of one buyer.

    Attributes:
        buyer: The buyer's label, as it was given.
        fingerprint: Public name of the buyer's sub-key.
        path: The file or folder of the copy, beside the register.
        files: SHA-256 of each of its files that hold weights, by name.
        size: Bytes of these files together.
        strength: The margin of every bit of the buyer's mark.
        change_relative: Norm of the change by the buyer's mark, as a share of the marked weights'.

    Examples:
        >>> register, _ = neuralmark.issue_copies("model.safetensors", key, ["Acme"], "copies")
        >>> register.copies[0].buyer, list(register.copies[0].files) == [register.copies[0].path]
        ('Acme', True)
    """

    buyer: str
    fingerprint: str
    path: str
    files: dict[str, str]
    size: int
    strength: float
    change_relative: float

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed register.

        Args:
            given: The table of the copy.

        Returns:
            The copy.

        Raises:
            TypeError: A part has the wrong form.
            ValueError: A part is missing or impossible.

        Examples:
            >>> told = asdict(IssuedCopy("Acme", "nm1-00", "acme.npz", {}, 0, 1.0, 0.02))
            >>> IssuedCopy.read(Fields(told)).buyer
            'Acme'
        """
        files = given.table("files").all_texts()
        if not all(_SHA256.fullmatch(digest) for digest in files.values()):
            raise ValueError("the digest of a file is none")
        path = _beside(given.text("path"))
        buyer = given.text("buyer")
        plain_label(buyer)
        return cls(
            buyer,
            given.text("fingerprint"),
            path,
            files,
            given.count("size"),
            given.number("strength"),
            given.number("change_relative"),
        )


@dataclass(frozen=True)
class CopyRegister(Record):
    """Which buyer got which file. For the owner only: it names the buyers and the marked tensors.

    Attributes:
        fingerprint: Public name of the owner's key.
        commitment: Hiding commitment to it.
        parameters: What shapes the read-out, of the owner's mark and of the buyers'.
        placement: The marked tensors in order, a canonical name and a shape each.
        anchor: Digest, bits and heads of the anchor that all marks are bound to.
        source_digest: SHA-256 of headers and marked tensors of the model before any mark.
        base: The owner's own copy, with the owner's mark only; its claim and anchor lie beside it.
        copies: The buyers' copies, in the order in which they were made.
        version: Version that wrote it.

    Examples:
        >>> register, _ = neuralmark.issue_copies("model.safetensors", key, ["A", "B"], "copies")
        >>> CopyRegister.load("copies/copies.json") == register, len(register.copies)
        (True, 2)
    """

    noun: ClassVar[str] = "register of copies"
    file_format: ClassVar[str] = COPIES_FORMAT

    fingerprint: str
    commitment: str
    parameters: Parameters
    placement: Placement
    anchor: ClaimedAnchor
    source_digest: Digest
    base: str
    copies: tuple[IssuedCopy, ...] = ()
    version: str = __version__

    @property
    def buyers(self) -> tuple[str, ...]:
        """Who got a copy."""
        return tuple(copy.buyer for copy in self.copies)

    def of(self, buyer: str) -> IssuedCopy | None:
        """The copy of one buyer, if there is one.

        Args:
            buyer: The label; case and extra blanks make no difference.

        Returns:
            The copy, or None.

        Raises:
            ParameterError: It is no label.

        Examples:
            >>> register, _ = neuralmark.issue_copies("model.safetensors", key, ["Acme"], "copies")
            >>> register.of("ACME").buyer, register.of("Bolt")
            ('Acme', None)
        """
        wanted = plain_label(buyer)
        return next((each for each in self.copies if plain_label(each.buyer) == wanted), None)

    def owner_of(self, files: dict[str, str]) -> str | None:
        """The buyer whose copy has files of these very digests, if there is one.

        Args:
            files: SHA-256 of whole files, by name.

        Returns:
            The buyer's label, or None; None too if there are no files to compare.

        Examples:
            >>> register, _ = neuralmark.issue_copies("model.safetensors", key, ["Acme"], "copies")
            >>> register.owner_of(register.copies[0].files)
            'Acme'
        """
        found = sorted(files.values())
        same = (each.buyer for each in self.copies if sorted(each.files.values()) == found)
        return next(same, None) if found else None

    def to_dict(self) -> dict[str, Any]:
        """As it stands in its file.

        Returns:
            Plain values, by name.

        Examples:
            >>> register, _ = neuralmark.issue_copies("model.safetensors", key, ["Acme"], "copies")
            >>> register.to_dict()["format"]
            'neuralmark-copies/1'
        """
        return {
            "format": COPIES_FORMAT,
            "version": self.version,
            "fingerprint": self.fingerprint,
            "commitment": self.commitment,
            "parameters": self.parameters.to_dict(),
            "placement": placement_list(self.placement),
            "anchor": asdict(self.anchor),
            "source_digest": asdict(self.source_digest),
            "base": self.base,
            "copies": [asdict(copy) for copy in self.copies],
        }

    @classmethod
    def _read(cls, given: Fields) -> Self:
        anchor = anchor_from(given.raw("anchor"))
        copies = tuple(map(IssuedCopy.read, given.tables("copies")))
        if anchor is None:
            raise ValueError("anchor is missing")
        if len({plain_label(copy.buyer) for copy in copies}) != len(copies):
            raise ValueError("two copies of one buyer")
        return cls(
            fingerprint=given.text("fingerprint"),
            commitment=given.text("commitment"),
            parameters=Parameters.from_dict(given.raw("parameters")),
            placement=placement_from(given.raw("placement")),
            anchor=anchor,
            source_digest=digest_from(given.raw("source_digest")),
            base=_beside(given.text("base")),
            copies=copies,
            version=given.text("version"),
        )


def _beside(name: str) -> str:
    """The name of something in the register's own folder; raises on anything else."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise ValueError(f"{name[:60]!r} does not lie beside the register")
    return name
