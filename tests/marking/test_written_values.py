"""What is written looks like what was there: on its grid, zeros where they were, no more range.

Each of these showed where a mark was to somebody without the key (docs/method.md, section 4).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

import neuralmark
from neuralmark import Key, Parameters
from neuralmark.errors import InfeasibleError, NonFiniteError, UnsuitableTensorError
from neuralmark.marking.embedding import Embedding
from tests.support.commands import call
from tests.support.models import gaussian, plain_key

Array = npt.NDArray[np.float32]
PARAMETERS = Parameters(bits=160, pools=320)
SHAPE = (256, 256)


@pytest.fixture
def secret() -> Key:
    return Key(PARAMETERS, b"owner=A", salt=bytes(32), secret=bytes(range(32)))


def layer(seed: int = 0) -> Array:
    return gaussian(*SHAPE, seed=seed)


def embedded(
    folder: Path, secret: Key, tensors: dict[str, Array], **options: object
) -> tuple[dict[str, Array], Embedding]:
    """The tensors of a float32 file after embedding."""
    save_file(tensors, folder / "m.safetensors")
    out = folder / "o.safetensors"
    given = neuralmark.EmbedOptions(**options)  # type: ignore[arg-type]
    made = neuralmark.embed(folder / "m.safetensors", secret, out, given, overwrite=True)
    assert made.verdict is not None
    assert made.verdict.matched == 160
    assert neuralmark.verify(out, secret).verified
    return load_file(out), made


# Grids of floating-point types.


def as_type(dtype: torch.dtype) -> Callable[[Array], Array]:
    def rounded(values: Array) -> Array:
        given: Array = torch.from_numpy(values).to(dtype).float().numpy()
        return given

    return rounded


def short(bits: int) -> Callable[[Array], Array]:
    """Cut to so many mantissa bits."""

    def rounded(values: Array) -> Array:
        words = np.ascontiguousarray(values).view(np.uint32)
        cut: Array = (words & np.uint32((0xFFFFFFFF << (23 - bits)) & 0xFFFFFFFF)).view(np.float32)
        return cut

    return rounded


GRIDS: dict[str, tuple[Callable[[Array], Array], str]] = {
    "bfloat16": (as_type(torch.bfloat16), "bfloat16"),
    "float16": (as_type(torch.float16), "float16"),
    "float8 e4m3": (as_type(torch.float8_e4m3fn), "float8 e4m3"),
    "float8 e5m2": (as_type(torch.float8_e5m2), "float8 e5m2"),
    "TF32": (short(10), "10 bits of mantissa"),
    "14 bits": (short(14), "14 bits of mantissa"),
    "20 bits": (short(20), "20 bits of mantissa"),
}


@pytest.mark.parametrize("kind", GRIDS)
def test_float32_files_that_hold_other_types_still_do(
    tmp_path: Path, secret: Key, kind: str
) -> None:
    rounded, _ = GRIDS[kind]
    before = rounded(layer())
    tensors, made = embedded(tmp_path, secret, {"a.weight": before})
    after = tensors["a.weight"]
    assert np.array_equal(after, rounded(after))
    assert 0.05 < np.count_nonzero(after != before) / before.size < 0.55
    assert np.abs(after).max() <= np.abs(before).max()
    assert made.strength >= 1


@pytest.mark.parametrize("kind", GRIDS)
def test_inspect_names_the_grid(tmp_path: Path, kind: str) -> None:
    rounded, name = GRIDS[kind]
    save_file({"a.weight": rounded(layer()), "b.weight": layer(1)}, tmp_path / "m.safetensors")
    rows = call("inspect", tmp_path / "m.safetensors", "--json").json["rows"]
    assert {row["name"]: row["grid"] for row in rows} == {"a.weight": name, "b.weight": "float32"}
    assert f" {name} " in call("inspect", tmp_path / "m.safetensors").out


@pytest.mark.parametrize(
    ("stored", "held"),
    [
        (torch.bfloat16, torch.float8_e4m3fn),
        (torch.float16, torch.float8_e5m2),
        (torch.float64, torch.float32),
        (torch.float64, torch.bfloat16),
    ],
)
def test_other_files_that_hold_coarser_types_still_do(
    tmp_path: Path, secret: Key, stored: torch.dtype, held: torch.dtype
) -> None:
    source, out = tmp_path / "m.safetensors", tmp_path / "o.safetensors"
    before = torch.from_numpy(layer()).to(held).to(stored)
    save_torch({"a.weight": before}, source)
    made = neuralmark.embed(source, secret, out)
    assert made.verdict is not None
    assert made.verdict.matched == 160
    after = load_torch(out)["a.weight"]
    assert after.dtype == stored
    assert torch.equal(after, after.to(held).to(stored))
    assert not torch.equal(after, before)


def test_each_tensor_keeps_its_own_grid(tmp_path: Path, secret: Key) -> None:
    kinds = ("bfloat16", "float16", "14 bits")
    before = {f"{i}.weight": GRIDS[kind][0](layer(i)) for i, kind in enumerate(kinds)}
    before["3.weight"] = layer(3)
    after, made = embedded(tmp_path, secret, before)
    assert len(made.tensors) == 4
    for i, kind in enumerate(kinds):
        value = after[f"{i}.weight"]
        assert np.array_equal(value, GRIDS[kind][0](value))
        assert (value != before[f"{i}.weight"]).any()
    assert (GRIDS["14 bits"][0](after["3.weight"]) != after["3.weight"]).mean() > 0.9


def test_a_few_values_off_the_grid_stay_where_they_are(tmp_path: Path, secret: Key) -> None:
    before = GRIDS["bfloat16"][0](layer())
    odd = np.random.default_rng(1).choice(before.size, 20, replace=False)
    before.reshape(-1)[odd] *= np.float32(1.0001)
    tensors, _ = embedded(tmp_path, secret, {"a.weight": before})
    after = tensors["a.weight"]
    off = np.flatnonzero(after != GRIDS["bfloat16"][0](after))
    assert np.array_equal(after.reshape(-1)[odd], before.reshape(-1)[odd])
    assert set(off) <= set(odd)


def test_tensors_change_in_proportion_to_their_size(tmp_path: Path, secret: Key) -> None:
    before = {f"{i}.weight": scale * layer(i) for i, scale in enumerate((0.1, 1.0, 10.0))}
    after, made = embedded(tmp_path, secret, before)
    shares = [
        np.linalg.norm(after[name] - before[name]) / np.linalg.norm(before[name]) for name in before
    ]
    assert max(shares) < 1.1 * min(shares)
    assert made.change_relative == pytest.approx(shares[2], rel=0.1)


# Zeros.


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_zeros_stay_where_a_coarse_type_has_some_of_its_own(
    tmp_path: Path, secret: Key, share: float
) -> None:
    before = GRIDS["float8 e4m3"][0](layer())
    before[np.random.default_rng(1).random(SHAPE) < share] = 0.0
    tensors, _ = embedded(tmp_path, secret, {"a.weight": before})
    after = tensors["a.weight"]
    assert not after[before == 0].any()
    assert np.count_nonzero(after == 0) < 1.02 * np.count_nonzero(before == 0)
    assert np.array_equal(after, GRIDS["float8 e4m3"][0](after))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_zeros_of_a_pruned_tensor_stay_and_no_others_appear(
    tmp_path: Path, secret: Key, share: float, kind: str
) -> None:
    before = layer()
    before = before if kind == "float32" else GRIDS[kind][0](before)
    before[np.random.default_rng(1).random(SHAPE) < share] = 0.0
    tensors, _ = embedded(tmp_path, secret, {"a.weight": before})
    after = tensors["a.weight"]
    assert np.array_equal(after == 0, before == 0)
    assert not np.signbit(after[after == 0]).any()
    assert (after != before).any()


def test_whole_rows_of_zeros_stay(tmp_path: Path, secret: Key) -> None:
    before = layer()
    before[::3] = 0.0
    tensors, _ = embedded(tmp_path, secret, {"a.weight": before})
    assert np.array_equal(tensors["a.weight"] == 0, before == 0)


def test_no_weight_crosses_the_threshold_of_magnitude_pruning(tmp_path: Path, secret: Key) -> None:
    before = layer()
    before[np.abs(before) < np.quantile(np.abs(before), 0.5)] = 0.0
    tensors, _ = embedded(tmp_path, secret, {"a.weight": before})
    least = np.abs(before[before != 0]).min()
    after = tensors["a.weight"]
    assert np.count_nonzero((after != 0) & (np.abs(after) < least)) == 0


def test_a_few_zeros_by_chance_are_no_pruning(tmp_path: Path, secret: Key) -> None:
    before = layer()
    before.reshape(-1)[:6] = 0.0
    tensors, _ = embedded(tmp_path, secret, {"a.weight": before}, strength=2)
    carried = np.count_nonzero(tensors["a.weight"].reshape(-1)[:6])
    assert carried > 0  # half of all weights are carriers: with this key, some of these


# Multiples of scales.


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("block", ["row", "tensor"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_multiples_of_scales_stay_multiples(
    tmp_path: Path, secret: Key, bits: int, block: str, stored: torch.dtype
) -> None:
    most = 2 ** (bits - 1) - 1
    given = layer().astype(np.float64)
    tops = np.abs(given).max(axis=1, keepdims=True) if block == "row" else np.abs(given).max()
    scales = np.broadcast_to(tops / most, (len(given), 1)).astype(np.float32)
    before = torch.from_numpy((np.rint(given / scales) * scales).astype(np.float32)).to(stored)
    source, out = tmp_path / "m.safetensors", tmp_path / "o.safetensors"
    save_torch({"a.weight": before}, source)
    made = neuralmark.embed(source, secret, out)
    assert made.verdict is not None
    assert made.verdict.matched == 160
    after = load_torch(out)["a.weight"]
    codes = np.rint(after.double().numpy() / scales)
    assert np.abs(codes).max() <= most
    again = torch.from_numpy((codes * scales).astype(np.float32)).to(stored)
    error = (after.double() - again.double()).abs().numpy()
    one = {torch.float32: 2**-22, torch.bfloat16: 2**-7}[stored]
    assert (error <= one * np.abs(after.double().numpy())).all()
    assert len(np.unique(after[0].float().numpy())) <= 2 * most + 1
    assert not torch.equal(after, before)
    rows = call("inspect", source, "--json").json["rows"]
    assert rows[0]["grid"] == (
        "multiples of 256 row scales" if block == "row" else "multiples of one scale"
    )


# Tensors that cannot carry a mark.


def unsuitable(kind: str) -> Array:
    rng = np.random.default_rng(7)
    if kind == "one value":
        return np.full(SHAPE, 0.25, np.float32)
    if kind == "zeros":
        return np.zeros(SHAPE, np.float32)
    if kind == "codebook":
        book = np.sort(rng.standard_normal(16)).astype(np.float32)
        return book[rng.integers(0, 16, SHAPE)]
    return (1e-41 * rng.standard_normal(SHAPE)).astype(np.float32)


REASONS = {
    "one value": "all values are the same",
    "zeros": "all values are zero",
    "codebook": "codebook",
    "denormals": "so small",
}


@pytest.mark.parametrize("kind", REASONS)
def test_a_named_tensor_that_cannot_carry_a_mark_is_refused(
    tmp_path: Path, secret: Key, kind: str
) -> None:
    source, out = tmp_path / "m.safetensors", tmp_path / "o.safetensors"
    save_file({"a.weight": unsuitable(kind), "b.weight": layer()}, source)
    for names in (["a.weight"], ["a.weight", "b.weight"]):
        with pytest.raises(
            UnsuitableTensorError, match=r"'a\.weight' cannot carry a mark"
        ) as error:
            neuralmark.embed(source, secret, out, options=neuralmark.EmbedOptions(tensors=names))
        assert REASONS[kind] in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("kind", REASONS)
def test_auto_leaves_it_as_it_is_and_says_so(tmp_path: Path, secret: Key, kind: str) -> None:
    before = {"a.weight": unsuitable(kind), "b.weight": layer(), "c.weight": layer(1)}
    after, made = embedded(tmp_path, secret, before)
    assert made.tensors == ("a.weight", "b.weight", "c.weight")
    assert after["a.weight"].tobytes() == before["a.weight"].tobytes()
    assert (after["b.weight"] != before["b.weight"]).any()
    (warning,) = made.warnings
    assert warning.startswith("1 of 3 tensors stay as they are (a.weight: ")
    assert REASONS[kind] in warning


@pytest.mark.parametrize("kind", REASONS)
def test_the_command_line_says_so_too(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "m.safetensors"
    save_file({"a.weight": unsuitable(kind), "b.weight": layer()}, source)
    key = plain_key(tmp_path / "k.nmkey")
    done = call("embed", source, "--key", key, "--dry-run")
    assert done.code == 0
    assert "warning: 1 of 2 tensors stay as they are (a.weight: " in done.err
    refused = call("embed", source, "--key", key, "--dry-run", "--tensor", "a.weight")
    assert REASONS[kind] in refused.failed(2, "UnsuitableTensorError")
    rows = {row["name"]: row for row in call("inspect", source, "--json").json["rows"]}
    assert REASONS[kind] in rows["a.weight"]["obstacle"]
    assert rows["a.weight"]["grid"] is None
    assert (rows["b.weight"]["obstacle"], rows["b.weight"]["grid"]) == (None, "float32")
    assert REASONS[kind] in call("inspect", source).out


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_inspect_lists_what_is_not_finite_and_embedding_refuses_it(
    tmp_path: Path, secret: Key, bad: float
) -> None:
    source, broken = tmp_path / "m.safetensors", layer()
    broken[3, 3] = bad
    save_file({"a.weight": broken, "b.weight": layer(1)}, source)
    rows = {row["name"]: row for row in call("inspect", source, "--json").json["rows"]}
    assert "NaN or infinity" in rows["a.weight"]["obstacle"]
    assert rows["b.weight"]["grid"] == "float32"
    for names in (None, ["a.weight"]):
        with pytest.raises(NonFiniteError, match=r"'a\.weight' holds NaN or infinity"):
            neuralmark.embed(
                source,
                secret,
                tmp_path / "o.safetensors",
                options=neuralmark.EmbedOptions(tensors=names),
            )


def test_a_model_of_nothing_else_is_refused(tmp_path: Path, secret: Key) -> None:
    source = tmp_path / "m.safetensors"
    save_file({"a.weight": unsuitable("zeros"), "b.weight": unsuitable("codebook")}, source)
    with pytest.raises(UnsuitableTensorError, match=r"'a\.weight' cannot carry a mark"):
        neuralmark.embed(source, secret, tmp_path / "o.safetensors")


def test_a_grid_that_leaves_no_room_is_infeasible(tmp_path: Path, secret: Key) -> None:
    source, out = tmp_path / "m.safetensors", tmp_path / "o.safetensors"
    signs = np.where(np.random.default_rng(0).random(SHAPE) < 0.5, -1, 1)
    near = (signs * (1 + layer(1).clip(-0.1, 0.1))).astype(np.float32)
    save_file({"a.weight": as_type(torch.bfloat16)(near)}, source)
    with pytest.raises(InfeasibleError):
        neuralmark.embed(source, secret, out, options=neuralmark.EmbedOptions(strength=200))
    save_file({"a.weight": GRIDS["float8 e4m3"][0](layer())}, source)
    with pytest.raises(InfeasibleError):
        neuralmark.embed(source, secret, out, options=neuralmark.EmbedOptions(strength=100))
    assert not out.exists()


# Dithering follows from the key.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32])
def test_the_same_key_writes_the_same_bytes_in_place_or_not(
    tmp_path: Path, secret: Key, dtype: torch.dtype
) -> None:
    source = tmp_path / "m.safetensors"
    tensors = {f"{i}.weight": torch.from_numpy(layer(i)).to(dtype) for i in range(2)}
    save_torch(tensors, source)
    outs = [tmp_path / f"{name}.safetensors" for name in ("one", "two", "other")]
    other = Key(PARAMETERS, b"owner=A", salt=bytes(32), secret=bytes(32))
    for out, key in zip(outs, (secret, secret, other), strict=True):
        neuralmark.embed(source, key, out, options=neuralmark.EmbedOptions(strength=1.5))
    one, two, else_ = (load_torch(out) for out in outs)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    for name in tensors:
        assert (one[name].float() != else_[name].float()).float().mean() > 0.05
        assert torch.equal(one[name].float(), two[name].float())
    neuralmark.embed(source, secret, options=neuralmark.EmbedOptions(strength=1.5), in_place=True)
    assert source.read_bytes() == outs[0].read_bytes()


def test_who_moves_follows_from_the_key_alone(
    tmp_path: Path, secret: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "m.safetensors"
    save_torch({"a.weight": torch.from_numpy(layer()).to(torch.float8_e4m3fn)}, source)
    outs = [tmp_path / f"{i}.safetensors" for i in range(2)]
    neuralmark.embed(source, secret, outs[0], options=neuralmark.EmbedOptions(strength=1))
    monkeypatch.setattr(Key, "noise", lambda self, placement, anchor=b"": 7)
    neuralmark.embed(source, secret, outs[1], options=neuralmark.EmbedOptions(strength=1))
    before, one, other = (load_torch(path)["a.weight"].float() for path in (source, *outs))
    moved = [each != before for each in (one, other)]
    both = (moved[0] & moved[1]).float().mean() / moved[0].float().mean()
    assert 0.5 < both < 0.97  # the same mark, but other weights make the steps


def test_content_placement_and_anchor_change_who_moves(tmp_path: Path, secret: Key) -> None:
    placement = (("a.weight", SHAPE),)
    owner = Key(PARAMETERS, b"owner=B", salt=bytes(32), secret=secret.secret)
    noises = {secret.noise(placement), owner.noise(placement), secret.noise((("b", SHAPE),))}
    noises |= {secret.noise(placement, bytes(64)), secret.noise(placement, bytes([1]) * 64)}
    assert len(noises) == 5
    assert secret.noise(placement) == secret.noise(placement)
    assert str(secret.noise(placement)) not in repr(secret)
