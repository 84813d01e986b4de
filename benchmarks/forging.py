"""Forgers against the published verification, and the same forgers against native keys.

    python -m benchmarks.forging [--only order] [--seed 1] [--json]

On a layer of 256·256·3·3 Gaussian weights that carries no mark (and, for the order, on 128 of
64·64·3·3). Must be reached: fitting a matrix passes at R=1 with 4096 strided pools and at R=1 and 2
with contiguous ones; ordering passes for a raw key; learning reaches 100 % for VanillaMark and
VoteMark; the identity passes a private filter. Against native keys, and against the hash, none
passes. The peer is the boundary of 227 bits and the best of as many coin-flippers.

Forgers draw from the seed, so that a run gives the same bits again (with the same number of threads
and the same linear algebra: the last digit of a fitted matrix changes its hash). A forger stops at
the boundary: what he has beyond it is luck.
"""

import sys

import numpy as np

from benchmarks._common import Report, parser
from neuralmark import schemes
from neuralmark.attacks import Attack, LaunchOptions, Weights, launch
from neuralmark.attacks.contract import Scene
from neuralmark.attacks.forge_fit import ForgeFit
from neuralmark.attacks.forge_identity import ForgeIdentity
from neuralmark.attacks.forge_learn import ForgeLearn
from neuralmark.attacks.forge_order import ForgeOrder
from neuralmark.attacks.forge_random import ForgeRandom
from neuralmark.attacks.rewrite import Rewrite
from neuralmark.keys.key import Key

BOUNDARY = 227


def gaussian(*shape: int, seed: int) -> np.ndarray:
    return (0.02 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def marked(scheme: str, weights: Weights) -> tuple[Weights, Key]:
    """The layer with an owner's mark of a scheme, so that the forger knows its parameters."""
    parameters = schemes.parameters(scheme)
    scene = Scene(weights, tuple(weights), np.random.default_rng(9), parameters=parameters)
    made = Rewrite(4.0).run(scene)
    assert made.weights is not None
    assert made.key is not None
    return dict(made.weights), made.key


def main(arguments: list[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--only", default="", help="forgers whose line begins with this")
    made.add_argument("--seed", type=int, default=1, help="of the forgers")
    options = made.parse_args(arguments)
    report = Report("forging", options.json)
    layer: Weights = {"conv.weight": gaussian(256, 256, 3, 3, seed=0)}
    many: Weights = {f"layers.{i}.weight": gaussian(64, 64, 3, 3, seed=i) for i in range(128)}
    cases: list[tuple[str, Attack, Weights, Key | None, bool]] = [
        ("fit, R=1, contiguous, k=512", ForgeFit(), layer, None, True),
        ("fit, R=2, contiguous, k=512", ForgeFit(rounds=2), layer, None, True),
        ("fit, R=1, strided, k=4096", ForgeFit(pools=4096, pooling="strided"), layer, None, True),
        ("fit, native", ForgeFit(against="native"), layer, None, False),
        ("order, 128 tensors", ForgeOrder(), many, None, True),
        ("order, native", ForgeOrder(against="native"), many, None, False),
        ("identity, private filter", ForgeIdentity(), layer, None, True),
        ("identity, hashed filter", ForgeIdentity(filter="tiled"), layer, None, False),
    ]
    for scheme in ("vanillamark", "votemark", "neuralmark"):
        own, key = marked(scheme, layer)
        learn = ForgeLearn(steps=10_000)
        cases.append((f"learn, {scheme}", learn, own, key, scheme != "neuralmark"))
    cases.append(("random, 1,000 keys", ForgeRandom(1000), layer, None, False))
    rows = []
    for name, attack, weights, owner, wanted in cases:
        if not name.startswith(options.only):
            continue
        result = launch(attack, weights, owner, options=LaunchOptions(seed=options.seed))
        assert result.after is not None
        matched, expected = result.after.matched, result.figures.get("expected_best_rate")
        rows.append(
            [
                name,
                matched,
                result.after.status,
                "" if expected is None else f"{256 * expected:.0f}",
                f"{result.queries:,}",
                f"{result.seconds:.1f} s",
            ]
        )
        passes = matched >= BOUNDARY
        words = f"{BOUNDARY} or more" if wanted else f"below {BOUNDARY}"
        report.target(name, matched, words, passed=passes == wanted and not result.after.verified)
    if not rows:
        known = ", ".join(name for name, *_ in cases)
        raise SystemExit(f"no forger's line begins with {options.only!r}: {known}")
    heads = ["forger", "bits of 256", "status here", "expected by luck", "queries", "time"]
    report.table(heads, rows)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
