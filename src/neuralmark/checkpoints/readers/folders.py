"""Files that another file names: only bare names, only inside its folder."""

from pathlib import Path

from neuralmark.errors import MalformedError, UnsafeError
from neuralmark.storage.places import Place


def bare_name(source: Place, name: str) -> str:
    """Refuse whatever is not the name of a file beside `source`; links are allowed."""
    bare = Path(name).name == name and "\\" not in name and name.isprintable()
    if not bare or name in (".", ".."):
        raise UnsafeError(f"{source}: refers to {name[:120]!r}, which is not a file beside it")
    return name


def in_folder(folder: Place, name: str) -> Place:
    """A file that must be there."""
    path = folder / name
    if not path.is_file():
        raise MalformedError(f"{folder}: the file {name} is missing")
    return path
