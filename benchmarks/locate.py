"""Every locating attack on every kind of marked model: AUC, bits after erasing, change it took.

    python -m benchmarks.locate --data DIR [--work DIR] [--weights 500e6] [--only NAME] [--json]

DIR holds CIFAR-10 and the ResNets (see benchmarks.resnets); without it, only the models that the
benchmark makes itself. Peers: erasing with the true carriers, and with any weights. Must be
reached: no locator finds the carriers of a mark under the stream filter with an AUC above 0.55
(0.6 for one who has the public base of a mark written with `base=`), and erasing that changes the
weights by at most 5 % leaves 227 bits (against a base: as long as half of the fine-tuning is left);
a mark trained under the published filter is found and erased. What was measured is kept in the work
folder, model by model: a run that was killed goes on, and another begins with an empty folder.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from benchmarks._common import Report, parser, scratch
from benchmarks._marked import MODELS, NEED_DATA, Finding
from benchmarks._suspects import ALONE, BESIDE, GUESS, TRUTH, Row
from neuralmark.errors import NeuralMarkWarning

BOUNDARY, CHANGE, LEFT = 227, 0.05, 0.5


def tell(report: Report, found: Finding) -> None:
    """The facts and the table of one model."""
    report.note(f"\n{found['title']}")
    for name, value in found["facts"].items():
        report.note(f"  {name}: {value}")
    if found["rows"]:
        head = ["locator", "AUC", "worst tensor", "AUC of moved", "erased: bits left at change"]
        report.table(head, [_cells(row) for row in found["rows"]])


def _cells(row: Row) -> list[str]:
    told = row["locator"] in BESIDE
    erased = "; ".join(
        f"{each['what']} {each['bits']} at {100 * each['change']:.2f} %"
        + (f" ({100 * each['left']:.0f} % of difference left)" if told else "")
        for each in row["erased"]
    )
    moved = "-" if row["moved"] is None else f"{row['moved']:.3f}"
    figures = [f"{row['auc']:.3f}", f"{row['worst']:.3f}", moved]
    return [row["locator"], *figures, erased or "nothing stands out"]


def judge(report: Report, found: Finding) -> None:
    """The targets of one model."""
    title, (alone, beside) = found["title"], found["limits"]
    rows = [row for row in found["rows"] if row["locator"] not in (TRUTH, GUESS)]
    if found.get("must_refuse"):
        refused = "refused" in found["facts"]
        report.target(f"{title}: refused", refused, "yes", passed=refused)
    if found.get("exposed"):
        _judge_exposed(report, title, rows)
        return
    for limit, names in ((alone, ALONE), (beside, BESIDE)):
        some = [row for row in rows if row["locator"] in names]
        if limit is None or not some:
            continue
        row = max(some, key=lambda each: max(each["auc"], each["moved"] or 0))
        seen = max(row["auc"], row["moved"] or 0)
        name = f"{title}: AUC of {row['locator']}"
        report.target(name, seen, f"at most {limit}", passed=seen <= limit)
        _judge_bits(report, title, some)


def _judge_bits(report: Report, title: str, rows: Sequence[Row]) -> None:
    """Bits after the worst erasing that is cheap and leaves half of the fine-tuning."""
    cheap = [
        (each["bits"], f"{row['locator']}, {each['what']}")
        for row in rows
        for each in row["erased"]
        if each["change"] <= CHANGE and (row["locator"] in ALONE or each["left"] >= LEFT)
    ]
    if cheap:
        bits, name = min(cheap)
        wanted = f"at least {BOUNDARY}"
        report.target(f"{title}: bits after {name}", bits, wanted, passed=bits >= BOUNDARY)


def _judge_exposed(report: Report, title: str, rows: Sequence[Row]) -> None:
    """The published filter: residues find the carriers, and the mark is gone."""
    row = next(row for row in rows if row["locator"] == "residues")
    bits = min(each["bits"] for each in row["erased"])
    report.target(f"{title}: AUC of residues", row["auc"], "above 0.9", passed=row["auc"] > 0.9)
    report.target(f"{title}: bits left", bits, f"below {BOUNDARY}", passed=bits < BOUNDARY)


def measured(name: str, options: argparse.Namespace) -> list[Finding]:
    """From the work folder, or measured now and put there."""
    options.work.mkdir(parents=True, exist_ok=True)
    kept = options.work / f"locate-{name}-{options.weights / 1e6:g}.json"
    if not kept.is_file():
        with scratch(options.work) as folder:
            found = MODELS[name](options, folder)
        draft = kept.with_suffix(".draft")
        draft.write_text(json.dumps(found))
        draft.replace(kept)
    made: list[Finding] = json.loads(kept.read_text())
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, help="folder with CIFAR-10 and the ResNets")
    options.add_argument(
        "--work", type=Path, default=Path("/tmp/nmlocate"), help="folder of what was measured"
    )
    options.add_argument(
        "--networks", type=Path, default=Path("/tmp/nmnetworks"), help="folder of trained CNNs"
    )
    options.add_argument("--weights", type=float, default=500e6, help="size of the largest model")
    options.add_argument("--only", choices=tuple(MODELS), help="one kind of model")
    chosen = options.parse_args(arguments)
    warnings.simplefilter("ignore", NeuralMarkWarning)
    report = Report("finding marks without the key, by every way known", chosen.json)
    for name in [chosen.only] if chosen.only else MODELS:
        if name in NEED_DATA and chosen.data is None:
            report.note(f"\n{name}: left out, needs --data")
            continue
        for found in measured(name, chosen):
            tell(report, found)
            judge(report, found)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
