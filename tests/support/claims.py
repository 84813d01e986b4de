"""Claims as they come, without the files that lie beside them."""

from neuralmark import Claim


def without_file(claim: Claim | None) -> Claim:
    """The claim as if it came by mail: no anchor is found beside it."""
    assert claim is not None
    return Claim.from_dict(claim.to_dict())
