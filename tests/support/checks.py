"""What is looked at in many tests: messages and folders."""

from pathlib import Path

from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.errors import NeuralMarkError


def one_line(error: NeuralMarkError) -> str:
    """Assert that a message is one line of reasonable length; give it."""
    message = str(error)
    assert message
    assert "\n" not in message
    assert len(message) < 1000
    return message


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, by its path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def raw(checkpoint: Checkpoint, name: str) -> bytes:
    """The stored bytes of a tensor."""
    return b"".join(bytes(piece) for piece in checkpoint.read(name))


def trouble_of(path: Path) -> str | None:
    """Read all of a checkpoint that can be read; the message of the named error, if there is one.

    Errors that are not named pass through.
    """
    try:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.names():
            if checkpoint.info(name).obstacle is None:
                for _ in checkpoint.read(name):
                    pass
    except NeuralMarkError as error:
        return str(error)
    return None
