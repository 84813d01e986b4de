"""The derivation of keys against known answers: `python -m benchmarks.golden FILE.json …`.

Each file is a list of cases: secret, bits, pools, rounds, filter, placement, content, anchor (hex)
and the answers K_sha256, b, weights, carriers, carriers_first, carriers_sha256. Without a file,
those of the project are checked. Exits with 1 if an answer differs.
"""

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import Report, parser
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Parameters, Terms, derive
from neuralmark.errors import NeuralMarkError

OWN = Path(__file__).parent.parent / "tests" / "golden" / "data" / "native2.json"


def answers(case: Mapping[str, Any]) -> dict[str, Any]:
    """What this library derives for a case, under the names of its answers."""
    placement = tuple((name, tuple(shape)) for name, shape in case["placement"])
    pooling = case.get("pooling", "strided")
    parameters = Parameters(
        case["bits"], case["pools"], case["rounds"], pooling, filter=case["filter"]
    )
    content, anchor = bytes.fromhex(case["content"]), bytes.fromhex(case["anchor"])
    terms = Terms(parameters, placement, content, anchor)
    mark = derive(bytes.fromhex(case["secret"]), terms)
    weights = sum(math.prod(shape) for _, shape in placement)
    carriers = Carriers.of(mark, weights)
    at = carriers.positions()
    return {
        "K_sha256": hashlib.sha256(mark.matrix.tobytes()).hexdigest(),
        "b": np.packbits(mark.bits).tobytes().hex(),
        "weights": weights,
        "carriers": carriers.size,
        "carriers_first": at[: len(case["carriers_first"])].tolist(),
        "carriers_sha256": hashlib.sha256(at.astype("<i8").tobytes()).hexdigest(),
    }


def differences(case: Mapping[str, Any]) -> list[str]:
    """The answers of a case that this library does not give."""
    return [name for name, ours in answers(case).items() if name in case and case[name] != ours]


def main(arguments: list[str] | None = None) -> int:
    """Check every case of every file."""
    options = parser(__doc__)
    options.add_argument("files", nargs="*", type=Path, default=[OWN], metavar="FILE.json")
    chosen = options.parse_args(arguments)
    report = Report("known answers of the derivation", chosen.json)
    for file in chosen.files:
        try:
            cases = json.loads(file.read_text())
            [answers(case) for case in cases]
        except (OSError, ValueError, KeyError, TypeError, NeuralMarkError) as error:
            sys.exit(f"{file}: not a file of known answers of version 2 ({error!r})")
        wrong = {i: found for i, case in enumerate(cases) if (found := differences(case))}
        for number, names in wrong.items():
            report.note(f"{file.name}, case {number}: {', '.join(names)} differ")
        right = len(cases) - len(wrong)
        report.target(file.name, right, f"all {len(cases)} cases", passed=bool(cases) and not wrong)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
