"""What a user should know of a scheme before choosing it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What a user should know of a scheme before choosing it; `neuralmark schemes` prints it.

    Attributes:
        origin: Who published it.
        bit: What number's sign a bit is.
        needs: What verification needs to look at.
        survives: Which attacks it survives, and which not.
        costs: What it changes or how long it takes.
        proves: What a full match proves: as published, and with a key derived from a secret.
        reconstruction: Whether only its idea was published, and the details are ours.

    Examples:
        >>> neuralmark.schemes.get("feng").facts.reconstruction
        True
    """

    origin: str = ""
    bit: str = ""
    needs: str = ""
    survives: str = ""
    costs: str = ""
    proves: str = ""
    reconstruction: bool = False
