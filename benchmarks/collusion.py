"""Buyers who mix their copies: how many are named, and that nobody else is.

    python -m benchmarks.collusion --data DIR [--work DIR] [--picture FILE.png] [--json]
    python -m benchmarks.collusion --only codes            (cover, coarse: these need no data)

A published CIFAR-10 ResNet-56 (DIR/weights) is sold to 50 buyers (`issue_copies`, the defaults).
Then 2 to 50 of them, drawn at random, mix their copies: the mean of each weight, one of them drawn
for each weight, the value that most agree on, the median, the smallest, the largest, one of these
two at random; with some of the mixtures rebuilt as well (`restructure all`). `trace` says whose
copies it sees. The accuracy of copies and mixtures is measured where DIR holds CIFAR-10.

`codes` compares, on Gaussian weights of the same number and at the same change, our marks with
Tardos codes over one mark that all copies share: the same mixtures, read against the anchor, named
at the same bound, 2^-128 for all buyers together (and, for codes, at 2^-20 as well).

`cover` compares marks with a cover and without one. `coarse` mixes copies in bfloat16, where
weights move by whole steps or not at all.

Must be reached: all of up to 8 colluders are named however they mix, nobody else ever is, the
owner's mark is verified in every mixture, and codes name fewer.
"""

import argparse
import hashlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

import neuralmark
from benchmarks._common import Report, parser, scratch
from benchmarks._tardos import TardosCode
from neuralmark import Key, Parameters
from neuralmark.attacks.collude import MIXINGS, Mixing, mixed
from neuralmark.core import imprint, readout
from neuralmark.core.bound import SECURITY_BITS, boundary
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Mark
from neuralmark.marking.buyers import buyer_parameters
from neuralmark.marking.hiding import LEAST_STRENGTH

Table = dict[str, npt.NDArray[np.float32]]
Array = npt.NDArray[np.float32]

BUYERS = 50
SIZES = (2, 3, 5, 8, 10, 15, 20, 30, 50)
SURE = 8
"""So many colluders must all be named, however they mix (10 was hoped for; one was missed)."""
TEN = 10
"""Colluders that the codes are made for, and buyers of copies in bfloat16."""
REBUILT: tuple[tuple[Mixing, int], ...] = (
    ("average", 5),
    ("average", 20),
    ("draw", 10),
    ("majority", 10),
    ("median", 5),
    ("minimum", 10),
)
PARTS = ("codes", "cover", "coarse", "network")
OURS = "a mark each"
LENGTHS = (1024, 2048)
WEAK_BITS = 20
"""A bound that codes are usually made for; ours is 2^-128."""
WEIGHTS = 850_000
CHANGE = 0.04
ROUNDING = 0.009
"""Of an 8-bit anchor, in deviations of the weights."""


@dataclass(frozen=True)
class Caught:
    """One mixture, and whom it gave away."""

    how: str
    colluders: int
    named: int
    wrong: int
    fewest: int
    """Bits of the colluder with the fewest."""
    most: int
    """Bits of the innocent buyer with the most."""
    owned: bool


def secret(number: int) -> Key:
    """The same keys in every run: they protect nothing."""
    made = hashlib.sha256(f"neuralmark collusion {number}".encode()).digest()
    return Key(Parameters(), b"", salt=hashlib.sha256(made).digest(), secret=made)


def table_of(path: Path) -> Table:
    """A copy's weights, under plain names."""
    import torch

    state = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    floats = {n: v.numpy() for n, v in state.items() if v.is_floating_point()}
    return {n.removeprefix("module."): np.asarray(v, np.float32) for n, v in floats.items()}


class Market:
    """Fifty copies of one network, and what becomes of mixtures of them."""

    def __init__(self, source: Path, work: Path) -> None:
        self.key, self.folder = secret(0), work / "copies"
        self.labels = [f"buyer {number}" for number in range(1, BUYERS + 1)]
        self.register, _ = neuralmark.issue_copies(source, self.key, self.labels, self.folder)
        self.copies = [table_of(self.folder / each.path) for each in self.register.copies]
        self.mixture = work / "mixture.safetensors"
        self.innocent: list[int] = []

    def mixed(self, how: Mixing, who: Sequence[int], rng: np.random.Generator) -> Table:
        """What these buyers make of their copies."""
        return {
            name: mixed([self.copies[i][name] for i in who], how, rng) for name in self.copies[0]
        }

    def caught(self, label: str, weights: Table, who: Sequence[int]) -> Caught:
        """Whom a mixture gives away."""
        save_file({n: np.ascontiguousarray(v) for n, v in weights.items()}, self.mixture)
        found = neuralmark.trace(self.mixture, self.key, self.folder)
        guilty = {self.labels[i] for i in who}
        others = [b.matched for b in found.buyers if b.label not in guilty]
        self.innocent += others
        named = set(found.named)
        return Caught(
            label,
            len(who),
            len(named & guilty),
            len(named - guilty),
            min(b.matched for b in found.buyers if b.label in guilty),
            max(others, default=0),
            found.owned,
        )


def network(report: Report, options: argparse.Namespace, work: Path) -> dict[str, list[Caught]]:
    """The real copies, mixed, some of them rebuilt as well."""
    from benchmarks.restructured import rebuilt

    source = next((options.data / "weights").glob("*resnet56*.th"))
    market, rng = Market(source, work), np.random.default_rng(0)
    lines: dict[str, list[Caught]] = {how: [] for how in MIXINGS}
    for how in MIXINGS:
        for size in SIZES:
            who = rng.permutation(BUYERS)[:size].tolist()
            lines[how].append(market.caught(how, market.mixed(how, who, rng), who))
        counted = [f"{each.named}/{each.colluders}" for each in lines[how]]
        report.note(f"{how}: {', '.join(counted)} named")
    also = []
    for how, size in REBUILT:
        who = rng.permutation(BUYERS)[:size].tolist()
        other = rebuilt(market.mixed(how, who, rng), "all", 8, 0, size)
        assert other is not None
        also.append(market.caught(f"{how}, rebuilt", other, who))
    everything = [each for line in lines.values() for each in line] + also
    rows = [
        [e.how, e.colluders, e.named, e.wrong, e.fewest, e.most, "yes" if e.owned else "no"]
        for e in everything
    ]
    head = ["mixture", "of 50", "named", "innocent named", "fewest", "innocent most", "owner"]
    needed = boundary(256, 2 * BUYERS)
    report.table(head, rows, f"ResNet-56, 50 buyers; {needed} of 256 bits name one")
    copies = market.register.copies
    changes = [100 * each.change_relative for each in copies]
    report.note(
        f"change by a buyer's mark: {np.mean(changes):.2f} % (largest {max(changes):.2f} %),"
        f" strength {np.mean([each.strength for each in copies]):.2f}"
    )
    innocent = np.array(market.innocent)
    report.note(
        f"{len(innocent):,} readings of innocent buyers (the better of two ways): mean"
        f" {innocent.mean():.1f}, largest {innocent.max()}"
    )
    if (options.data / "cifar-10-batches-py").is_dir():
        accuracy(report, options.data, source, market, rng)
    sure = [e.named / e.colluders for e in everything if e.colluders <= SURE]
    report.target("share named of up to 8", min(sure), "1: all", passed=min(sure) == 1)
    wrong = sum(e.wrong for e in everything)
    report.target("innocent buyers named", wrong, "none", passed=wrong == 0)
    owned = sum(not e.owned for e in everything)
    report.target("mixtures without the owner's mark", owned, "none", passed=owned == 0)
    return lines


def accuracy(
    report: Report, data: Path, source: Path, market: Market, rng: np.random.Generator
) -> None:
    """What marks and mixtures cost the network."""
    import torch

    from benchmarks.resnets import Evaluator, test_images

    evaluator = Evaluator(source, 9, test_images(data))
    rows = [["unmarked", f"{evaluator.accuracy(source):.2f} %"]]
    rows.append(["owner's copy", f"{evaluator.accuracy(market.folder / 'owner.th'):.2f} %"])
    some = [market.folder / each.path for each in market.register.copies[:3]]
    mean = np.mean([evaluator.accuracy(path) for path in some])
    rows.append(["buyers' copies (3)", f"{mean:.2f} %"])
    for how in MIXINGS:
        weights = market.mixed(how, range(10), rng)
        state = {"state_dict": {f"module.{n}": torch.from_numpy(v) for n, v in weights.items()}}
        mixture = market.folder / "mixture.th"
        torch.save(state, mixture)
        rows.append([f"{how} of 10", f"{evaluator.accuracy(mixture):.2f} %"])
        mixture.unlink()
    report.table(["network", "accuracy"], rows, "CIFAR-10")


@dataclass(frozen=True, eq=False)
class Carried:
    """Where a mark lies, and what moves for it."""

    mark: Mark
    carriers: Carriers
    at: npt.NDArray[np.int64]

    @classmethod
    def of(cls, mark: Mark, weights: int) -> "Carried":
        """In a tensor of so many weights."""
        carriers = Carriers.of(mark, weights)
        return cls(mark, carriers, carriers.positions(0, carriers.size))

    def shifts(
        self,
        weights: Array,
        bits: npt.NDArray[np.uint8],
        rng: np.random.Generator,
        *,
        cover: bool = True,
    ) -> Array:
        """How far each weight moves for these bits; all methods change as much."""
        mark = Mark(self.mark.parameters, self.mark.matrix, bits)
        pooled = readout.pool(weights[self.at].astype(np.float64), self.carriers.pools)
        solver = imprint.LeastChange(mark).beyond(pooled)
        change = solver.change(pooled, imprint.goal_of(pooled, 1.0))
        moved = np.zeros(len(weights), np.float32)
        moved[self.at] = np.tile(change, self.carriers.per_pool)
        beside = np.ones(len(weights), bool)
        beside[self.at] = False
        if cover:
            moved[beside] = rng.choice(change, int(beside.sum()))
        scale = CHANGE * np.linalg.norm(weights) / np.linalg.norm(moved)
        return np.asarray(moved * np.float32(scale))

    def read(self, residue: Array) -> npt.NDArray[np.bool_]:
        """The bits in what weights differ by from the anchor."""
        pooled = readout.pool(residue[self.at].astype(np.float64), self.carriers.pools)
        return np.asarray(pooled @ self.mark.matrix.astype(np.float64) > 0)


Named = Callable[[Array], set[int]]
"""From what a mixture differs by from the anchor to the buyers that it gives away."""


@dataclass(frozen=True, eq=False)
class Method:
    """A way of marking copies, and of naming those who mixed them."""

    label: str
    copies: list[Array]
    named: Named


def ours(weights: Array, *, cover: bool = True) -> Method:
    """A mark of its own for every buyer."""
    place = (("w", weights.shape),)
    shape = buyer_parameters(Parameters(), place)
    keys = [secret(0).sub(f"buyer {number}", parameters=shape) for number in range(BUYERS)]
    marks = [Carried.of(key.at(place), len(weights)) for key in keys]
    needed = boundary(shape.bits, 2 * BUYERS) or math.inf

    def named(residue: Array) -> set[int]:
        hits = [int((m.read(residue) == m.mark.bits.astype(bool)).sum()) for m in marks]
        return {number for number, hit in enumerate(hits) if hit >= needed}

    rng = np.random.default_rng(4)
    copies = [mark.shifts(weights, mark.mark.bits, rng, cover=cover) for mark in marks]
    return Method(OURS if cover else "without a cover", copies, named)


def coded(weights: Array, length: int) -> Iterator[Method]:
    """One mark that all share; its bits are the words of a Tardos code."""
    shape = Parameters(bits=length, pools=4 * length)
    made = secret(1)
    key = Key(shape, b"", salt=made.salt, secret=made.secret)
    shared = Carried.of(key.at((("w", weights.shape),)), len(weights))
    rng = np.random.default_rng(2)
    code = TardosCode.new(BUYERS, length, TEN, rng)

    copies = [shared.shifts(weights, word, rng) for word in code.words]

    def named(residue: Array, bits: int) -> set[int]:
        bounds = code.bounds_log2(shared.read(residue).astype(np.uint8))
        limit = -bits - math.log2(2 * BUYERS)
        return {number for number, bound in enumerate(bounds) if bound < limit}

    for bits in (SECURITY_BITS, WEAK_BITS):
        yield Method(f"Tardos {length:,}, 2^-{bits}", copies, partial(named, bits=bits))


def codes(report: Report) -> None:
    """Our marks and Tardos codes, at the same change and bound."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal(WEIGHTS).astype(np.float32)
    methods = [ours(weights), *(m for length in LENGTHS for m in coded(weights, length))]
    totals = compared(report, methods, rng)
    strict = [total for label, total in totals.items() if label.endswith(f"-{SECURITY_BITS}")]
    share = max(strict) / max(totals[OURS], 1)
    report.target("named by the better code, of ours", share, "below 1", passed=share < 1)


def covers(report: Report) -> None:
    """Our marks with a cover and without one, at the same change."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal(WEIGHTS).astype(np.float32)
    compared(report, [ours(weights), ours(weights, cover=False)], rng)


def compared(report: Report, methods: Sequence[Method], rng: np.random.Generator) -> dict[str, int]:
    """How many are named in all, by method."""
    sizes, totals, wrong, rows = (2, 3, 5, 8, 10, 20), dict[str, int](), 0, []
    for method in methods:
        totals[method.label] = 0
        for how in MIXINGS:
            cells = []
            for size in sizes:
                who = rng.permutation(BUYERS)[:size].tolist()
                residue = mixed([method.copies[i] for i in who], how, rng)
                residue = residue + rng.normal(0, ROUNDING, WEIGHTS).astype(np.float32)
                found = method.named(residue)
                totals[method.label] += len(found & set(who))
                wrong += len(found - set(who))
                cells.append(f"{len(found & set(who))}/{size}")
            rows.append([method.label, how, *cells])
    head = ["method", "mixture", *(f"of {size}" for size in sizes)]
    report.table(head, rows, f"{WEIGHTS:,} Gaussian weights, every copy is changed by 4 %")
    report.target("innocent buyers named (Gaussian)", wrong, "none", passed=wrong == 0)
    return totals


def coarse(report: Report, work: Path) -> None:
    """Copies in bfloat16, where small shifts are steps that only some weights take."""
    import torch
    from safetensors.torch import load_file
    from safetensors.torch import save_file as save_torch

    rng, rows, missed = np.random.default_rng(0), [], 0
    torch.manual_seed(0)
    save_torch({"a.weight": (0.05 * torch.randn(2048, 2048)).bfloat16()}, work / "m.safetensors")
    labels = [f"buyer {number}" for number in range(1, TEN + 1)]
    for strength in (1.0, 0.25):
        folder, key = work / f"coarse-{strength}", secret(5)
        chosen = neuralmark.CopyOptions(strength=strength)
        register, _ = neuralmark.issue_copies(work / "m.safetensors", key, labels, folder, chosen)
        paths = [folder / "owner.safetensors", *(folder / each.path for each in register.copies)]
        base, *copies = (load_file(path)["a.weight"].float().numpy() for path in paths)
        still = float(np.mean([(copy == base).mean() for copy in copies]))
        for how in ("average", "majority", "median"):
            cells = []
            for size in (2, 3, 5, TEN):
                mixture = {"a.weight": torch.from_numpy(mixed(copies[:size], how, rng))}
                save_torch(mixture, work / "mixture.safetensors")
                found = neuralmark.trace(work / "mixture.safetensors", key, folder)
                missed += (size - len(found.named)) * (strength >= LEAST_STRENGTH)
                cells.append(f"{len(found.named)}/{size}")
            change = 100 * register.copies[0].change_relative
            rows.append([f"strength {strength}", f"{change:.1f} %", f"{still:.0%}", how, *cells])
    head = ["bfloat16", "change", "unmoved", "mixture", "of 2", "of 3", "of 5", "of 10"]
    report.table(head, rows, "4.2 million Gaussian weights in bfloat16, 10 buyers")
    name = "colluders missed in bfloat16, at the least strength that is usual"
    report.target(name, missed, "none", passed=missed == 0)


def drawn(lines: dict[str, list[Caught]], file: Path) -> None:
    """The picture: share of the colluders named, by their number."""
    from neuralmark.lab.contract import Figure, Line
    from neuralmark.reports.render import plots

    curves = tuple(
        Line(how, tuple((e.colluders, 100 * e.named / e.colluders) for e in line))
        for how, line in lines.items()
    )
    title = "Buyers of 50 who mix their copies of a ResNet-56: share that is named"
    figure = Figure(title, "colluders", "named (%)", curves, log=True)
    file.write_bytes(plots.drawn(figure)[1])


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for."""
    made = parser(__doc__)
    made.add_argument("--data", type=Path, help="folder with weights/ (and CIFAR-10)")
    made.add_argument("--work", type=Path, help="where copies are kept while it runs")
    made.add_argument("--picture", type=Path, help="PNG to write")
    made.add_argument("--only", choices=PARTS, help="one of its parts")
    options = made.parse_args(arguments)
    parts = PARTS if options.only is None else (options.only,)
    if "network" in parts and options.data is None:
        made.error("--data is needed, or --only codes, cover or coarse")
    report = Report("collusion: buyers who mix their copies", options.json)
    with scratch(options.work) as work:
        if "codes" in parts:
            codes(report)
        if "cover" in parts:
            covers(report)
        if "coarse" in parts:
            coarse(report, work)
        if "network" in parts:
            lines = network(report, options, work)
            if options.picture:
                drawn(lines, options.picture)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
