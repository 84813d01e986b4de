"""What marking and verifying cost, and on which machine: a part of the report after MPAI-NNW."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from neuralmark.records import Fields


@dataclass(frozen=True)
class Spent:
    """What one operation took: the median of its runs, and the most memory of its process."""

    seconds: float
    runs: int
    memory: int | None = None
    """Largest resident memory of a process that does nothing else, in bytes."""
    idle: int | None = None
    """Of it, what the library takes before it begins."""

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed report; raises on anything of the wrong form."""
        memory, idle = given.count_or_none("memory"), given.count_or_none("idle")
        if given.number("seconds") < 0 or not given.count("runs"):
            raise ValueError("a cost has no time")
        return cls(given.number("seconds"), given.count("runs"), memory, idle)


@dataclass(frozen=True)
class MarkingCost:
    """Computational cost of injecting and of detecting and decoding (one operation here)."""

    embed: Spent | None = None
    """Writing the mark into a file, with reading it back."""
    embed_how: str = ""
    """On what it was measured, or why it was not."""
    verify: Spent | None = None
    digest: Spent | None = None
    """SHA-256 of the same file: what merely reading it takes."""
    size: int | None = None
    """Bytes of the file."""
    step: float | None = None
    """Seconds of a training step (one batch) with the mark."""
    step_clean: float | None = None
    """The same without."""
    step_why: str = ""
    inference: float | None = None
    """Seconds of the marked network for one example."""

    @property
    def embed_ratio(self) -> float | None:
        """Time of embedding in times of the digest."""
        return _ratio(self.embed, self.digest)

    @property
    def verify_ratio(self) -> float | None:
        """Time of verification in times of the digest."""
        return _ratio(self.verify, self.digest)

    @property
    def step_ratio(self) -> float | None:
        """Time of a training step with the mark in times of one without."""
        return self.step / self.step_clean if self.step and self.step_clean else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        ratios = {
            "embed_ratio": self.embed_ratio,
            "verify_ratio": self.verify_ratio,
            "step_ratio": self.step_ratio,
        }
        return {**asdict(self), **ratios}

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed report; raises on anything of the wrong form."""
        operations = [
            None if given.empty(name) else Spent.read(given.table(name))
            for name in ("embed", "verify", "digest")
        ]
        return cls(
            embed=operations[0],
            embed_how=given.text("embed_how"),
            verify=operations[1],
            digest=operations[2],
            size=given.count_or_none("size"),
            step=given.number_or_none("step"),
            step_clean=given.number_or_none("step_clean"),
            step_why=given.text("step_why"),
            inference=given.number_or_none("inference"),
        )


def _ratio(spent: Spent | None, other: Spent | None) -> float | None:
    return spent.seconds / other.seconds if spent and other and other.seconds > 0 else None


@dataclass(frozen=True)
class Machine:
    """Where the cost was measured: the standard wants the environment stated."""

    processor: str
    cores: int
    """That this process may use."""
    memory: int | None
    """Bytes."""
    system: str
    python: str
    numpy: str

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed report; raises on anything of the wrong form."""
        return cls(
            given.text("processor"),
            given.count("cores"),
            given.count_or_none("memory"),
            given.text("system"),
            given.text("python"),
            given.text("numpy"),
        )
