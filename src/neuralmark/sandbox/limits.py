"""How much a sandboxed process may use."""

from dataclasses import dataclass

from neuralmark.errors import ParameterError

LEAST_MEMORY = 512 << 20
"""Python and numpy alone map nearly as much."""
USUAL_MEMORY = 4 << 30
USUAL_SECONDS = 600.0


@dataclass(frozen=True)
class SandboxLimits:
    """What a process that reads suspects may use.

    Attributes:
        memory: Bytes of address space.
        seconds: Time for one model, on the clock and of the processor.
        files: Files that are open at a time.

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> neuralmark.SandboxLimits(memory=2 << 30).seconds
        600.0
    """

    memory: int = USUAL_MEMORY
    seconds: float = USUAL_SECONDS
    files: int = 256

    def __post_init__(self) -> None:
        """Refuse what no process can work with."""
        if type(self.memory) is not int or self.memory < LEAST_MEMORY:
            raise ParameterError(
                f"memory must be at least {LEAST_MEMORY:,} bytes, which Python itself takes, not"
                f" {self.memory!r:.40}"
            )
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, int | float):
            raise ParameterError(f"seconds must be a number, not {self.seconds!r:.40}")
        if not 0 < self.seconds <= 1e9:
            raise ParameterError(f"seconds must be above 0, not {self.seconds}")
        if type(self.files) is not int or not 32 <= self.files <= 65536:
            raise ParameterError(f"files must be between 32 and 65,536, not {self.files!r:.40}")
