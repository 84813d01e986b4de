"""What fuzzing begins with."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Seed:
    """A valid input: which reader takes it, its suffix, its bytes.

    `reader` is checkpoint, computed (a checkpoint whose weights are computed), key, claim, matrix,
    index (of a folder whose shards are sound), shard (of a folder whose index is sound) or within
    (a file of a folder whose other files are sound).
    """

    name: str
    reader: str
    suffix: str
    data: bytes
    place: str = ""
    """Within: where the file lies below the folder of seeds."""
    opens: str = ""
    """Within: what is opened."""
