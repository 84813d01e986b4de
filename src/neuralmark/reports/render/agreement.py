"""What tables say of the paper: what agrees, what contradicts it, what could not be told."""

from collections.abc import Iterable, Mapping, Sequence

from neuralmark.lab.comparing import AGREES, CONTRADICTS, OPEN, UNTESTED, Cell
from neuralmark.lab.contract import Table

FLAG = "≠"
"""Behind a value that contradicts the paper: the mark is proven in one and not in the other."""
DOUBT = "≠?"
"""The same by the mean of the seeds only: their interval reaches over the boundary."""
NOT_RUN = "not run"
STANDINGS = (AGREES, CONTRADICTS, OPEN, UNTESTED, NOT_RUN)


def flag(cell: Cell) -> str:
    """The sign behind a value; nothing where it does not contradict the paper.

    >>> flag(Cell("50", "100", contradicts=True, standing="open"))
    '≠?'
    """
    if not cell.contradicts:
        return ""
    return FLAG if cell.standing == CONTRADICTS else DOUBT


def statement(table: Table) -> str:
    """One line on a table that stands beside the paper's rates; empty for others."""
    found: dict[str, list[str]] = {name: [] for name in STANDINGS}
    for row in table.rows:
        for head, cell in zip(table.head, row, strict=False):
            if isinstance(cell, Cell) and (standing := _standing(cell)):
                found[standing].append(f"{row[0]} {head}")
    found[UNTESTED] += table.left_out
    if not any(found.values()):
        return ""
    said = [f"{len(found[AGREES])} agree"]
    said += _listed("contradict it with significance", found[CONTRADICTS])
    said += _listed("open, since the 95 % interval reaches over the boundary", found[OPEN])
    said += _listed("could not be tested, since there was no mark to attack", found[UNTESTED])
    said += [f"{len(found[NOT_RUN])} not run yet"] if found[NOT_RUN] else []
    return f"Beside the paper's rates: {'; '.join(said)}."


def _listed(what: str, cells: Sequence[str]) -> list[str]:
    return [f"{len(cells)} {what} ({', '.join(cells)})"] if cells else []


def _standing(cell: Cell) -> str:
    """That of a cell; one that has the paper's rate but no rows was not run."""
    if cell.standing or not cell.paper:
        return cell.standing
    return "" if cell.ours.strip("–() ") or "(" not in cell.paper else NOT_RUN


def agreement(tables: Mapping[str, Iterable[Table]]) -> str:
    """How many cells of all experiments agree with the paper, contradict it, or tell nothing."""
    counts = dict.fromkeys(STANDINGS, 0)
    against: dict[str, int] = {}
    for name, some in tables.items():
        some = list(some)
        counts[UNTESTED] += sum(len(table.left_out) for table in some)
        cells = [cell for table in some for row in table.rows for cell in row]
        for standing in (_standing(cell) for cell in cells if isinstance(cell, Cell)):
            if standing:
                counts[standing] += 1
            if standing == CONTRADICTS:
                against[name] = against.get(name, 0) + 1
    where = ", ".join(f"{name} {count}" for name, count in against.items())
    return (
        f"Of {sum(counts.values())} detection rates beside the paper's, {counts[AGREES]} agree with"
        f" it, {counts[CONTRADICTS]} contradict it with significance"
        f"{f' ({where})' if where else ''}, {counts[OPEN]} are open (the 95 % interval of the seeds"
        f" reaches over the boundary, or there is one seed), {counts[UNTESTED]} could not be tested"
        f" (no mark before the attack), and {counts[NOT_RUN]} were not run yet. The paper has one"
        " seed and no intervals."
    )
