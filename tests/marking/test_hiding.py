"""Marks in fine-tunes of public models: what the base gives away, and marks inside adapters."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import neuralmark
from neuralmark import Key, schemes
from neuralmark.core.carriers import Carriers
from neuralmark.core.grid import Grid
from neuralmark.core.update import auc, low_rank
from neuralmark.errors import InfeasibleError, ParameterError, UnsuitableTensorError
from neuralmark.marking import hiding
from neuralmark.marking.reading import Reading, require_carriers
from neuralmark.marking.spanning import SpanSolver
from neuralmark.marking.surveying import MarkedPart, Sample, Survey
from tests.support.commands import call

SIDE, LAYERS = 512, 8
DEVIATION = 0.02
Change = Callable[[torch.Tensor], torch.Tensor]


def tuned(share: float) -> Change:
    """Full fine-tuning: noise of so large a share of the weights' deviation."""
    return lambda w: w + share * DEVIATION * torch.randn_like(w)


def adapted(share: float, rank: int) -> Change:
    """A merged adapter."""

    def change(w: torch.Tensor) -> torch.Tensor:
        product = torch.randn(SIDE, rank) @ torch.randn(rank, SIDE)
        return w + product * (share * DEVIATION / product.std())

    return change


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("base") / "base.safetensors"
    save_file(
        {
            f"layers.{i}.weight": (DEVIATION * torch.randn(SIDE, SIDE)).bfloat16()
            for i in range(LAYERS)
        },
        path,
    )
    return path


@pytest.fixture
def fine_tune(base: Path, tmp_path: Path) -> Callable[[Change], Path]:
    def make(change: Change) -> Path:
        torch.manual_seed(1)
        path = tmp_path / "tuned.safetensors"
        save_file({n: change(w.float()).bfloat16() for n, w in load_file(base).items()}, path)
        return path

    return make


def moved_and_not(
    marked: Path, model: Path, base: Path
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sizes of the differences to the base: of weights the mark moved, and of the others."""
    after, before, public = (load_file(path) for path in (marked, model, base))
    names = sorted(after)
    flat = [torch.cat([t[n].float().reshape(-1) for n in names]) for t in (after, before, public)]
    moved = flat[0] != flat[1]
    size = (flat[0] - flat[2]).abs()
    return size[moved], size[~moved], moved


def test_a_mark_hides_behind_fine_tuning(
    base: Path, fine_tune: Callable[[Change], Path], tmp_path: Path
) -> None:
    model, out, key = fine_tune(tuned(0.2)), tmp_path / "out.safetensors", Key.new()
    done = neuralmark.embed(model, key, out, options=neuralmark.EmbedOptions(base=base))
    assert done.verdict is not None
    assert done.verdict.matched == 256
    assert done.exposure is not None
    assert done.exposure <= 0.55
    ours, others, _ = moved_and_not(out, model, base)
    seen = auc(ours.numpy(), others.numpy())
    assert max(seen, 1 - seen) == pytest.approx(done.exposure, abs=0.02)


def test_too_little_fine_tuning_hides_nothing(
    base: Path, fine_tune: Callable[[Change], Path], tmp_path: Path
) -> None:
    model, out, key = fine_tune(tuned(0.005)), tmp_path / "out.safetensors", Key.new()
    with pytest.raises(InfeasibleError, match="whoever has the base would find the mark"):
        neuralmark.embed(model, key, out, options=neuralmark.EmbedOptions(base=base))
    assert not out.exists()
    insisted = neuralmark.embed(
        model, key, out, options=neuralmark.EmbedOptions(base=base, strength=1.0)
    )
    assert insisted.exposure is not None
    assert insisted.exposure > 0.6


def test_weights_that_fine_tuning_left_alone_stay(
    base: Path, fine_tune: Callable[[Change], Path], tmp_path: Path
) -> None:
    """A sparse update: a moved weight outside of it would show at once."""

    def sparse(w: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.rand_like(w) < 0.5, tuned(0.3)(w), w)

    model, out = fine_tune(sparse), tmp_path / "out.safetensors"
    done = neuralmark.embed(
        model, Key.new(), out, options=neuralmark.EmbedOptions(base=base, strength=1.0)
    )
    assert done.verdict is not None
    assert done.verdict.matched == 256
    after, before, public = (load_file(path) for path in (out, model, base))
    for name in after:
        alone = before[name] == public[name]
        assert alone.float().mean() > 0.4
        assert torch.equal(after[name][alone], before[name][alone])


def test_tensors_of_the_base_itself_are_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsuitableTensorError, match="it is the base's own"):
        neuralmark.embed(
            base,
            Key.new(),
            tmp_path / "out.safetensors",
            options=neuralmark.EmbedOptions(base=base),
        )


def test_another_model_is_no_base(fine_tune: Callable[[Change], Path], tmp_path: Path) -> None:
    model, other = fine_tune(tuned(0.2)), tmp_path / "other.safetensors"
    save_file({"x.weight": torch.randn(64, 200)}, other)
    with pytest.raises(UnsuitableTensorError, match="the base has no tensor of this name"):
        neuralmark.embed(
            model,
            Key.new(),
            tmp_path / "out.safetensors",
            options=neuralmark.EmbedOptions(base=other),
        )


def test_a_merged_adapter_is_recognised(
    base: Path, fine_tune: Callable[[Change], Path], tmp_path: Path
) -> None:
    model = fine_tune(adapted(0.2, 16))
    with pytest.raises(InfeasibleError, match=r"as of a merged adapter.*in_span=True"):
        neuralmark.embed(
            model,
            Key.new(),
            tmp_path / "out.safetensors",
            options=neuralmark.EmbedOptions(base=base),
        )


@pytest.mark.parametrize("scheme", ["feng"])
def test_a_scheme_that_is_not_linear_is_not_written_inside_a_span(
    scheme: str, base: Path, fine_tune: Callable[[Change], Path], tmp_path: Path
) -> None:
    model, key = fine_tune(adapted(1.0, 32)), Key.new(schemes.parameters(scheme, bits=160))
    options = neuralmark.EmbedOptions(base=base, in_span=True)
    with pytest.raises(ParameterError, match=f"{scheme} is not written inside an adapter's span"):
        neuralmark.embed(model, key, tmp_path / "out.safetensors", options=options)


def test_a_mark_inside_an_adapters_span_keeps_its_rank(
    base: Path, fine_tune: Callable[[Change], Path], tmp_path: Path
) -> None:
    rank = 32
    model, out, key = fine_tune(adapted(1.0, rank)), tmp_path / "out.safetensors", Key.new()
    done = neuralmark.embed(
        model, key, out, options=neuralmark.EmbedOptions(base=base, in_span=True)
    )
    assert done.verdict is not None
    assert done.verdict.matched == 256
    after, before, public = (load_file(path) for path in (out, model, base))
    for name in after:
        assert after[name].dtype == torch.bfloat16
        rest = []
        for state in (after, before):
            difference = (state[name].float() - public[name].float()).numpy()
            left, right = low_rank(difference, rank)
            rest.append(difference - left @ right)
        assert rest[0].std() == pytest.approx(rest[1].std(), rel=0.1)
    assert located_in_rest(after, public, key, rank) < 0.52


def located_in_rest(after: Any, public: Any, key: Key, rank: int) -> float:
    """How well carriers are told from others by what the low rank does not explain."""
    names = sorted(after, key=lambda n: int(n.split(".")[1]))
    placement = tuple((name, (SIDE, SIDE)) for name in names)
    carriers = require_carriers(key.at(placement), placement)
    scores = []
    for name in names:
        difference = (after[name].float() - public[name].float()).numpy()
        left, right = low_rank(difference, rank)
        scores.append(torch.from_numpy(abs(difference - left @ right)).reshape(-1))
    flat = torch.cat(scores)
    mask = torch.zeros(len(flat), dtype=torch.bool)
    mask[torch.from_numpy(carriers.positions())] = True
    seen = auc(flat[mask].numpy(), flat[~mask].numpy())
    return max(seen, 1 - seen)


def test_an_adapter_that_is_too_small_is_refused_with_its_share(
    base: Path, fine_tune: Callable[[Change], Path], tmp_path: Path
) -> None:
    model = fine_tune(adapted(0.05, 4))
    with pytest.raises(InfeasibleError, match="would change the adapter by"):
        neuralmark.embed(
            model,
            Key.new(),
            tmp_path / "out.safetensors",
            options=neuralmark.EmbedOptions(base=base, in_span=True),
        )


def test_plain_fine_tuning_has_no_span(
    base: Path, fine_tune: Callable[[Change], Path], tmp_path: Path
) -> None:
    model, out = fine_tune(tuned(0.2)), tmp_path / "out.safetensors"
    with pytest.raises(InfeasibleError, match="not a merged adapter"):
        neuralmark.embed(
            model, Key.new(), out, options=neuralmark.EmbedOptions(base=base, in_span=True)
        )
    with pytest.raises(ParameterError, match="needs the base"):
        neuralmark.embed(model, Key.new(), out, options=neuralmark.EmbedOptions(in_span=True))
    with pytest.raises(ParameterError, match="not a budget"):
        neuralmark.embed(
            model,
            Key.new(),
            out,
            options=neuralmark.EmbedOptions(base=base, in_span=True, budget=1.0),
        )


def test_inspect_says_what_who_has_the_base_would_find(
    base: Path, fine_tune: Callable[[Change], Path]
) -> None:
    model = fine_tune(tuned(0.2))
    found = call("inspect", model, "--base", base, "--json").json["base"]
    assert found["moved"] == pytest.approx(0.2, rel=0.05)
    assert found["low_rank"] < 0.5
    seen = dict(map(tuple, found["exposures"]))
    assert 0.5 <= seen[0.5] <= seen[1.0] <= seen[4.0]
    assert "embed with base=..." in found["advice"]
    text = call("inspect", model, "--base", base)
    assert "fine-tuning moved" in text.out
    merged = call("inspect", fine_tune(adapted(0.2, 16)), "--base", base, "--json").json["base"]
    assert merged["low_rank"] > 0.9
    assert "in_span=True" in merged["advice"]


def test_the_command_line_shows_the_exposure(
    base: Path, fine_tune: Callable[[Change], Path], tmp_path: Path, key: Path
) -> None:
    model, out = fine_tune(tuned(0.2)), tmp_path / "out.safetensors"
    done = call("embed", model, "--key", key, "-o", out, "--base", base)
    assert done.code == 0, done.err
    assert "against the base" in done.out
    missing = call("embed", model, "--key", key, "-o", out, "--force", "--base", tmp_path / "no")
    assert missing.code == 3
    assert "Traceback" not in missing.err


@pytest.mark.parametrize(
    ("most", "slope", "strength"),
    [(2.0, 0.03, 2.0), (2.0, 0.04, 2.0), (2.0, 0.05, 1.6), (0.5, 0.17, 0.5), (2.0, 0.09, 1.0)],
)
def test_the_largest_strength_that_hides_is_taken(
    monkeypatch: pytest.MonkeyPatch, most: float, slope: float, strength: float
) -> None:
    """Where exposure grows with the strength: 0.58 is aimed at, 0.6 at strength 1 is the limit."""
    monkeypatch.setattr(hiding, "exposure_at", lambda found, solver, at, seed: 0.5 + slope * at)
    any_: Any = None
    found = hiding.hidden_strength(any_, any_, most, 0)
    assert found == pytest.approx(strength, abs=0.02)
    assert 0.5 + slope * found <= 0.58 or found == min(1.0, most)


def test_what_stands_out_at_strength_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hiding, "exposure_at", lambda found, solver, at, seed: 0.5 + 0.11 * at)
    found: Any = SimpleNamespace(parts=())
    with pytest.raises(InfeasibleError, match=r"0\.61"):
        hiding.hidden_strength(found, found, 2.0, 0)


def test_of_no_difference_nothing_is_explained() -> None:
    parts: Any = SimpleNamespace(parts=(SimpleNamespace(update=None),))
    assert hiding.explained(parts) == 0
    shares = ((1.0, 0.5), (1.0, 1.0), (0.0, 0.0))  # the last is the base's own
    some = [
        SimpleNamespace(update=SimpleNamespace(size=size, explained=share))
        for size, share in shares
    ]
    mixed: Any = SimpleNamespace(parts=(*parts.parts, *some))
    assert hiding.explained(mixed) == 0.75


def test_a_mark_is_made_as_strong_as_fine_tuning_hides(
    base: Path, fine_tune: Callable[[Change], Path]
) -> None:
    model, key = fine_tune(tuned(0.08)), Key.new()
    much = neuralmark.EmbedOptions(budget=6.0)
    hidden = neuralmark.EmbedOptions(budget=6.0, base=base)
    found = neuralmark.embed(model, key, options=hidden)
    most = neuralmark.embed(model, key, options=much)
    assert 1.0 < found.strength < 0.9 * most.strength
    assert found.exposure is not None
    assert 0.55 < found.exposure <= 0.6


def test_a_mark_in_a_span_is_made_as_strong_as_the_adapter_bears(
    base: Path, fine_tune: Callable[[Change], Path]
) -> None:
    model, key = fine_tune(adapted(0.5, 32)), Key.new()
    found = neuralmark.embed(model, key, options=neuralmark.EmbedOptions(base=base, in_span=True))
    assert 1.0 < found.strength < 2.0


def adapters(folder: Path, ranks: dict[str, int], side: int) -> tuple[Path, Path]:
    """A base, and adapters merged into some of its tensors."""
    torch.manual_seed(2)
    public = {name: (DEVIATION * torch.randn(side, side)).bfloat16() for name in ranks}
    merged = {}
    for name, rank in ranks.items():
        product = torch.randn(side, rank) @ torch.randn(rank, side)
        change = product * (DEVIATION / product.std()) if rank else torch.zeros(side, side)
        merged[name] = (public[name].float() + change).bfloat16()
    save_file(public, folder / "public.safetensors")
    save_file(merged, folder / "merged.safetensors")
    return folder / "merged.safetensors", folder / "public.safetensors"


def test_an_adapter_of_some_tensors_is_marked_in_these(tmp_path: Path) -> None:
    ranks = {f"layers.{i}.weight": 32 if i % 2 else 0 for i in range(LAYERS)}
    model, public = adapters(tmp_path, ranks, SIDE)
    options = neuralmark.EmbedOptions(base=public, in_span=True, strength=0.5, anchor=False)
    out, key = tmp_path / "out.safetensors", Key.new(neuralmark.Parameters(160, 320))
    done = neuralmark.embed(model, key, out, options=options)
    assert done.verdict is not None
    assert done.verdict.matched == 160
    after, before = load_file(out), load_file(model)
    assert {n for n in after if not torch.equal(after[n], before[n])} == {
        n for n in ranks if ranks[n]
    }
    again = neuralmark.EmbedOptions(base=public, in_span=True, strength=0.1, anchor=False)
    kept = neuralmark.embed(out, key, options=again)  # the margins hold already
    assert kept.change_relative == 0


def test_a_span_without_directions_is_too_small() -> None:
    rng = np.random.default_rng(0)
    half_spaces, pooled = rng.standard_normal((64, 16)), rng.standard_normal(64)
    with pytest.raises(InfeasibleError, match="span is too small"):
        SpanSolver(half_spaces, np.zeros((16, 16))).cost(pooled, 1.0)
    assert not SpanSolver(half_spaces, np.eye(16)).change(pooled, -1e6).any()  # nothing is missing


def sampled(part: int, residual: Any, carrier: Any, movable: Any = True) -> Sample:
    count = len(residual)
    values = np.random.default_rng(part).standard_normal(count).astype(np.float32)
    return Sample(
        part,
        values,
        np.asarray(residual, np.float64),
        np.arange(count),
        np.asarray(carrier, np.int64),
        np.broadcast_to(movable, count).copy(),
    )


def seen_in(samples: tuple[Sample, ...], shifts: Any, reach: tuple[float, ...]) -> float | None:
    grid = Grid("float32", 23, 100.0)
    parts = [MarkedPart(cast("Any", None), 0, grid, each) for each in reach]
    carriers = Carriers.everything(8, 4)
    reading = Reading(carriers, np.zeros(4), 1.0, 1.0, {})
    found = Survey(reading, tuple(parts), np.ones(4), np.ones(4), samples)
    return hiding.exposed(found, np.asarray(shifts, np.float64), 1)


def test_exposure_is_how_well_residuals_of_moved_weights_stand_out() -> None:
    """Against a plain computation: carriers 0 to 7 move by their pool's shift times the reach."""
    rng = np.random.default_rng(0)
    shifts = np.array([0.5, -1.0, 0.25, 2.0])
    first = sampled(0, rng.standard_normal(40), np.arange(40) - 20)
    free = rng.random(40) < 0.5
    second = sampled(1, rng.standard_normal(40), rng.integers(-1, 10, 40), free)
    moved, still = [], []
    for sample, reach in ((first, 0.5), (second, 2.0)):
        ours = sample.movable & (sample.carrier >= 0) & (sample.carrier < 8)
        change = np.where(ours, reach * shifts[sample.carrier % 4], 0.0)
        score = np.abs(sample.residual + change) / reach
        moved.append(score[ours])
        still.append(score[~ours])
    plain = auc(np.concatenate(moved), np.concatenate(still))
    assert seen_in((first, second), shifts, (0.5, 2.0)) == pytest.approx(max(plain, 1 - plain))


def test_exposure_counts_both_ways_and_needs_weights_of_both_kinds() -> None:
    shifts = [1.0, 1.0, 1.0, 1.0]
    inwards = sampled(0, [-1.0, -1.0, 3.0, 3.0], [0, 1, -1, -1])
    assert seen_in((inwards,), shifts, (1.0,)) == 1
    nothing = sampled(1, [0.5, 0.5], [-1, -1])
    assert seen_in((inwards, nothing), shifts, (1.0, 1.0)) is not None
    assert seen_in((nothing,), shifts, (1.0, 1.0)) is None
    assert seen_in((sampled(0, [1.0, 2.0], [0, 1]),), shifts, (1.0,)) is None
    assert seen_in((), shifts, ()) is None
