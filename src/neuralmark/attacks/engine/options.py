"""What a user may choose when launching an attack or running the suite: frozen records."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neuralmark.attacks.contract import Weights, checked_seed
from neuralmark.errors import ParameterError
from neuralmark.marking.options import check_list, check_names, check_path, is_list, shown

if TYPE_CHECKING:
    import torch

    from neuralmark.anchors.anchor import Anchor


@dataclass(frozen=True)
class LaunchOptions:
    """How one attack is launched.

    Attributes:
        tensors: Names of the tensors that the attack may touch; by default every floating-point
            matrix.
        others: Checkpoints of the same shape, for merging.
        seed: Where everything random begins.
        demand: Whether a model without the key's mark is refused.
        keep: A file in which an attack that trains keeps its progress after every epoch.
        anchor: The mark's anchor, or a file that is one (or the unmarked original): the attacked
            copy is read with it too. By default the one beside the claim, if there is one.

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> neuralmark.attacks.LaunchOptions(seed=3).seed
        3
    """

    tensors: Sequence[str] | None = None
    others: Sequence[str | Path | Weights] = ()
    seed: int = 0
    demand: bool = True
    keep: str | Path | None = None
    anchor: "Anchor | str | Path | None" = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, and seeds that not every generator takes."""
        check_names(self.tensors)
        check_list("others", self.others, "checkpoints")
        check_path("keep", self.keep)
        object.__setattr__(self, "seed", checked_seed(self.seed))


@dataclass(frozen=True)
class SuiteOptions:
    """How the suite is run.

    Attributes:
        only: Names of the attacks to run; all of them by default.
        others: Checkpoints of the same shape, for the attacks that merge.
        seed: Where everything random begins.
        jobs: The number of processes (default: one per core; 1: none but this one).
        anchor: The mark's anchor, as in `LaunchOptions`: the card then says what is read with it.

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> neuralmark.attacks.SuiteOptions(only=["noise"], jobs=1).jobs
        1
    """

    only: Sequence[str] | None = None
    others: Sequence[str | Path | Weights] = ()
    seed: int = 0
    jobs: int | None = None
    anchor: "Anchor | str | Path | None" = None

    def __post_init__(self) -> None:
        """Refuse numbers and names that cannot be meant."""
        _check_run(self.only, self.jobs)
        check_list("others", self.others, "checkpoints")
        object.__setattr__(self, "seed", checked_seed(self.seed))


@dataclass(frozen=True)
class StandardOptions:
    """How an evaluation after MPAI-NNW is run.

    Attributes:
        original: The network before it was marked: a path, a table of weights or a live module.
            Without it neither the change of the weights nor false alarms are measured.
        only: Names of the attacks whose modifications are made; all of the standard's by default.
        seed: Where everything random begins.
        jobs: The number of processes (default: one per core; 1: none but this one, and then no
            memory is measured).
        anchor: The mark's anchor, as in `LaunchOptions`.

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> neuralmark.attacks.StandardOptions(original="model.safetensors", jobs=1).seed
        0
    """

    original: "str | Path | Weights | torch.nn.Module | None" = None
    only: Sequence[str] | None = None
    seed: int = 0
    jobs: int | None = None
    anchor: "Anchor | str | Path | None" = None

    def __post_init__(self) -> None:
        """Refuse numbers and names that cannot be meant."""
        _check_run(self.only, self.jobs)
        object.__setattr__(self, "seed", checked_seed(self.seed))


def _check_run(only: Sequence[str] | None, jobs: int | None) -> None:
    whole = isinstance(jobs, int | np.integer) and not isinstance(jobs, bool)
    if jobs is not None and not (whole and jobs >= 1):
        raise ParameterError(f"jobs must be a whole number, 1 or more, not {jobs!r}")
    if only is not None and not (is_list(only, str) and len(only)):
        raise ParameterError(
            f'only must be a list of names, as in only=["noise"], not {shown(only)}'
        )
