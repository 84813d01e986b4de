"""What a judge is shown of one buyer: that buyer's sub-key and claim, and nothing of the others."""

from pathlib import Path

from neuralmark.anchors.sealed import reseal_anchor
from neuralmark.core.subkeys import plain_label
from neuralmark.errors import BuyersError, ClaimMismatchError, OutputError
from neuralmark.keys.key import Key
from neuralmark.marking.beside import anchor_path, claim_path
from neuralmark.marking.buyers import buyer_parameters
from neuralmark.marking.claiming import claim_of
from neuralmark.marking.issuing import REGISTER
from neuralmark.records import Claim, CopyRegister, Digest
from neuralmark.storage import files


def buyer_key(key: Key, label: str, copies: CopyRegister | str | Path) -> tuple[Key, Claim]:
    """The sub-key of one buyer, and the claim of its mark in that buyer's copy: for a judge.

    Whoever holds them verifies, and can remove, this one mark. They tell nothing of the owner's
    key, its mark, or the other buyers', except which tensors are marked.

    Args:
        key: The owner's key.
        label: The buyer.
        copies: The register of the copies, its path, or the folder it lies in.

    Returns:
        The key and its claim; both work with `verify` as any others do.

    Raises:
        BuyersError: The register knows no such buyer.
        ClaimMismatchError: The register is of another key.
        RecordError: The register cannot be read.

    Examples:
        >>> register, _ = neuralmark.issue_copies("model.safetensors", key, ["A", "B"], "copies")
        >>> sub, claim = neuralmark.buyer_key(key, "B", "copies")
        >>> copies = [Path("copies") / each.path for each in register.copies]
        >>> [neuralmark.verify(copy, sub, claim=claim).verified for copy in copies]
        [False, True]
    """
    register = register_of(copies)
    if (register.fingerprint, register.commitment) != (key.fingerprint, key.commitment):
        raise ClaimMismatchError(
            f"the register is of the key {register.fingerprint[:60]}, not of this one"
            f" ({key.fingerprint}): give the owner's key"
        )
    issued = register.of(label)
    if issued is None:
        known = len(register.copies)
        raise BuyersError(
            f"{plain_label(label)[:60]!r} is none of the {known} buyers of the register"
        )
    shape = buyer_parameters(key.parameters, register.placement)
    sub = key.sub(label, parameters=shape)
    marked = Digest(register.source_digest.headers, {}, issued.files)
    return sub, claim_of(sub, register.placement, marked, None, register.anchor)


def register_of(copies: CopyRegister | str | Path) -> CopyRegister:
    """The register itself, from its file or from its folder."""
    if isinstance(copies, CopyRegister):
        return copies
    path = Path(copies)
    return CopyRegister.load(path / REGISTER if path.is_dir() else path)


def show_anchor(key: Key, sub: Key, copies: str | Path, out: Path) -> None:
    """Write the anchor of all marks a second time, for the holder of a sub-key.

    It is the owner's coarse copy of the unmarked weights: whoever has it and a copy sees, and can
    take out, every mark in it. For a judge, never for a buyer.
    """
    path = Path(copies)
    folder = path if path.is_dir() else path.parent
    sealed = anchor_path(claim_path(folder / register_of(copies).base))
    with files.writing(out):
        if out.exists():
            raise OutputError(f"{out} exists already: choose another name")
    reseal_anchor(sealed, key, out, sub)
