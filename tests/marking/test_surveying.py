"""A first look at tensors: what they hold, and what a shift of their pools costs."""

import hashlib
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import save_file

from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.core.carriers import Carriers, Listed
from neuralmark.errors import NonFiniteError
from neuralmark.marking.placement import Tensor, catalogue
from neuralmark.marking.surveying import Base, Survey, look, pieces, survey

POOLS = 32
Tensors = dict[str, torch.Tensor]


def saved(path: Path, **tensors: torch.Tensor) -> tuple[Checkpoint, list[Tensor]]:
    save_file(tensors, path)
    checkpoint = open_checkpoint(path)
    return checkpoint, sorted(catalogue(checkpoint), key=lambda tensor: tensor.name)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def surveyed(path: Path, tensors: Tensors, base: Base | None = None) -> Survey:
    checkpoint, known = saved(path, **tensors)
    total = sum(tensor.info.size for tensor in known)
    return survey(checkpoint, known, Carriers.everything(total, POOLS), base=base)


def flat(tensors: Tensors) -> npt.NDArray[np.float64]:
    return np.concatenate([tensors[name].double().reshape(-1).numpy() for name in sorted(tensors)])


def test_a_survey_reads_what_verifying_reads(tmp_path: Path) -> None:
    tensors = {"a": normal(700, 800), "b": 3 * normal(64, 64, seed=1) + 1}
    found = surveyed(tmp_path / "m.safetensors", tensors)
    values = flat(tensors)
    chosen = values[: len(values) // POOLS * POOLS].reshape(-1, POOLS)
    pooled = chosen.mean(axis=0)
    np.testing.assert_allclose(found.reading.pooled, pooled, rtol=1e-5, atol=1e-6)
    around = np.square(chosen - pooled).sum() / (chosen.size - POOLS)
    assert found.reading.within == pytest.approx(math.sqrt(around), rel=1e-5)
    assert found.reading.norm == pytest.approx(np.linalg.norm(values), rel=1e-6)
    assert [part.start for part in found.parts] == [0, 700 * 800]
    checkpoint, known = saved(tmp_path / "m.safetensors", **tensors)
    steps: list[tuple[str, int, int]] = []
    carriers = found.reading.carriers
    survey(checkpoint, known, carriers, progress=lambda *step: steps.append(step))
    first, total = 4 * 700 * 800, 4 * len(values)
    assert steps == [("reading", first, total), ("reading", total, total)]


def test_weights_move_in_proportion_to_the_size_of_their_tensor(tmp_path: Path) -> None:
    tensors = {"a": normal(64, 64), "b": 3 * normal(64, 64, seed=1)}
    found = surveyed(tmp_path / "m.safetensors", tensors)
    sizes = [float(tensor.double().square().mean().sqrt()) for tensor in tensors.values()]
    assert [part.reach for part in found.parts] == pytest.approx(sizes)
    each = 64 * 64 // POOLS
    np.testing.assert_allclose(found.sums, each * sum(sizes))
    np.testing.assert_allclose(found.squares, each * (sizes[0] ** 2 + sizes[1] ** 2))
    # Shifting all weights by shift · reach moves the pools' means by the change, at that effort.
    change = np.linspace(0.5, 1.5, POOLS)
    shifts = found.shifts(change)
    moved = sum(size * shifts * each for size in sizes) / (2 * each)
    np.testing.assert_allclose(moved, change)
    spent = np.sqrt(sum((size * shifts) ** 2 * each for size in sizes))
    np.testing.assert_allclose(found.effort * change, spent)


def test_a_tensor_that_cannot_carry_keeps_its_place_and_moves_nothing(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(64, 64), "b": normal(64, 64)}
    found = surveyed(tmp_path / "m.safetensors", tensors)
    stays, moves = found.parts
    assert (stays.grid, stays.reach) == (None, 0.0)
    assert stays.why == "all values are the same"
    assert moves.start == 64 * 64
    np.testing.assert_allclose(found.sums, 128 * moves.reach)
    nothing = surveyed(tmp_path / "n.safetensors", {"a": torch.ones(64, 64)})
    assert np.isinf(nothing.effort).all()
    assert not nothing.shifts(np.ones(POOLS)).any()


def test_values_are_taken_in_the_files_precision(tmp_path: Path) -> None:
    for dtype, kind in ((torch.float64, np.float64), (torch.bfloat16, np.float32)):
        tensors = {"w": normal(90, 50, dtype=dtype) / 3}
        checkpoint, (known,) = saved(tmp_path / "m.safetensors", **tensors)
        values = Base.of(checkpoint).values(known)
        assert values is not None
        assert values.dtype == kind
        np.testing.assert_array_equal(values, flat(tensors))


def test_a_base_has_values_for_tensors_of_the_same_name_and_shape(tmp_path: Path) -> None:
    checkpoint, _ = saved(tmp_path / "b.safetensors", a=normal(8, 9), c=torch.ones(8, 9).int())
    base = Base.of(checkpoint)
    _, others = saved(
        tmp_path / "m.safetensors", a=normal(9, 8), b=normal(8, 9), c=normal(8, 9), d=normal(8, 9)
    )
    assert [base.values(tensor) is None for tensor in others] == [True] * 4


def test_what_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    spoilt = normal(64, 64)
    spoilt[3, 4] = math.nan
    checkpoint, (known,) = saved(tmp_path / "m.safetensors", w=spoilt)
    with pytest.raises(NonFiniteError, match="'w'"):
        look(checkpoint, known)


def test_pieces_are_the_tensor_and_its_carriers(tmp_path: Path) -> None:
    tensors = {"a": normal(50, 60), "b": normal(700, 800, seed=1)}
    checkpoint, known = saved(tmp_path / "m.safetensors", **tensors)
    total = sum(tensor.info.size for tensor in known)
    carriers = Carriers.everything(total, POOLS)
    found = survey(checkpoint, known, carriers)
    values, read, first = flat(tensors), 0, 3000
    for piece in pieces(checkpoint, found.parts[1], carriers):
        assert (piece.offset, piece.first, piece.base) == (read, first, None)
        np.testing.assert_array_equal(piece.values, values[3000 + read + piece.at])
        read += piece.raw.nbytes // 4
        first += len(piece.at)
    assert read == 700 * 800
    assert first == carriers.size


def test_fine_tuning_is_measured_against_the_base(tmp_path: Path) -> None:
    public, tuning = normal(128, 256), 0.01 * normal(128, 256, seed=1)
    checkpoint, _ = saved(tmp_path / "b.safetensors", w=public)
    base = Base.of(checkpoint)
    (part,) = surveyed(tmp_path / "m.safetensors", {"w": public + tuning}, base).parts
    assert part.update is not None
    assert part.update.size == pytest.approx(float(tuning.square().mean().sqrt()), rel=1e-3)
    assert part.reach == part.update.residual < part.update.size
    (same,) = surveyed(tmp_path / "s.safetensors", {"w": public}, base).parts
    assert (same.grid, same.why) == (None, "it is the base's own")
    for factor, related in ((0.54, True), (0.51, False)):  # differs by 0.85 and 0.96 of its size
        (part,) = surveyed(tmp_path / "o.safetensors", {"w": factor * public}, base).parts
        assert (part.grid is not None) == related
    (gone,) = surveyed(tmp_path / "g.safetensors", {"v": public}, base).parts
    assert gone.grid is None


@pytest.mark.parametrize("changed", [0.5, 1.0])
def test_weights_at_the_bases_values_stay_where_many_do(tmp_path: Path, changed: float) -> None:
    public = normal(128, 256)
    moved = torch.rand(128, 256, generator=torch.Generator().manual_seed(5)) < changed
    tuned = torch.where(moved, public + 0.1 * normal(128, 256, seed=1), public)
    checkpoint, _ = saved(tmp_path / "b.safetensors", w=public)
    base = Base.of(checkpoint)
    made, known = saved(tmp_path / "m.safetensors", w=tuned)
    carriers = Carriers.everything(128 * 256, POOLS)
    found = survey(made, known, carriers, base=base)
    (part,), (sample,) = found.parts, found.samples
    assert part.update is not None
    assert part.update.sparse == (changed < 1)
    free = moved.reshape(-1).numpy()
    counts = free.reshape(-1, POOLS).sum(axis=0)
    np.testing.assert_allclose(found.sums, part.reach * counts)
    np.testing.assert_allclose(found.squares, part.reach**2 * counts)
    assert sample.movable.tolist() == free[sample.places].tolist()
    difference = (tuned - public).reshape(-1).numpy()[sample.places]
    smooth = part.update.smooth_part(sample.places)
    np.testing.assert_allclose(sample.residual, difference - smooth, atol=1e-6)
    assert np.abs(smooth).max() > 0
    for piece in pieces(made, part, carriers, base):
        if changed < 1:
            assert piece.base is not None
            np.testing.assert_array_equal(piece.base, public.reshape(-1)[piece.at].numpy())
        else:
            assert piece.base is None
    for piece in pieces(made, part, carriers):
        assert piece.base is None
    data = tuned.numpy().tobytes()
    assert found.reading.digests == {"w": hashlib.sha256(data).hexdigest()}
    assert "array" not in repr(found).replace(repr(found.reading), "")


def test_samples_know_which_weights_are_carriers(tmp_path: Path) -> None:
    public = {"a": normal(40, 50), "b": normal(128, 256, seed=3)}
    checkpoint, _ = saved(tmp_path / "b.safetensors", **public)
    tuned = {name: value + 0.01 * normal(*value.shape, seed=9) for name, value in public.items()}
    made, known = saved(tmp_path / "m.safetensors", **tuned)
    carriers = Carriers.everything(2000 + 128 * 256, POOLS)
    found = survey(made, known, carriers, base=Base.of(checkpoint))
    assert [sample.part for sample in found.samples] == [0, 1]
    for sample, part in zip(found.samples, found.parts, strict=True):
        values = tuned[part.tensor.name].reshape(-1).numpy()
        np.testing.assert_array_equal(sample.values, values[sample.places])
        inside = part.start + sample.places < carriers.size
        np.testing.assert_array_equal(sample.carrier[inside], (part.start + sample.places)[inside])
        assert (sample.carrier[~inside] == -1).all()
        assert len(sample.places) >= 1000
        assert sample.movable.all()
    few = Listed.at(np.arange(0, 1920, 3), carriers.total, POOLS)
    some, none = survey(made, known, few, base=Base.of(checkpoint)).samples
    third = (some.places % 3 == 0) & (some.places < 1920)
    assert some.carrier.tolist() == np.where(third, some.places // 3, -1).tolist()
    assert (none.carrier == -1).all()
    last = 2000 + int(none.places[7])
    alone = Listed.at(np.append(np.arange(0, 1917, 3), last), carriers.total, POOLS)
    _, one = survey(made, known, alone, base=Base.of(checkpoint)).samples
    assert one.carrier.tolist() == [639 if i == 7 else -1 for i in range(len(one.places))]
