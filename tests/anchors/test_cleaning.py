"""What a thief added is set aside, and the mark is read in what is left."""

import hashlib
from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from neuralmark import Key, Parameters
from neuralmark.anchors.cleaning import Cleaned, Trust, clean, rounding_of, weigh
from neuralmark.core.carriers import Carriers
from neuralmark.core.imprint import LeastChange, goal_of
from neuralmark.core.key import Mark
from neuralmark.errors import NonFiniteError

SIZE = 0.02
BOUNDARY = 228


def coarse(weights: np.ndarray) -> np.ndarray:
    """A copy of four bits per weight."""
    rows = weights.reshape(len(weights), -1)
    scale = np.abs(rows).max(axis=1, keepdims=True) / 7
    return np.asarray(np.rint(rows / scale) * scale, np.float32).reshape(weights.shape)


@dataclass(frozen=True)
class Scene:
    """Marked tensors, their anchors, and the mark."""

    marked: list[np.ndarray]
    anchors: list[np.ndarray]
    mark: Mark
    carriers: Carriers

    def bits(self, tensors: list[np.ndarray], mark: Mark | None = None) -> int:
        """How many bits match."""
        mark = mark or self.mark
        carriers = Carriers.of(mark, self.carriers.total)
        flat = np.concatenate([tensor.ravel() for tensor in tensors])
        pooled = flat[carriers.positions()].astype(np.float64).reshape(-1, carriers.pools).mean(0)
        return int((pooled @ mark.matrix * mark.signs > 0).sum())

    def read(self, suspects: list[np.ndarray]) -> tuple[int, list[Cleaned]]:
        """How many bits match against the anchor."""
        cleaned = [
            clean(*both, found(both[1])) for both in zip(suspects, self.anchors, strict=True)
        ]
        factors = weigh([each.trust for each in cleaned])
        parts = zip(cleaned, factors, strict=True)
        return self.bits([each.fill + factor * each.kept for each, factor in parts]), cleaned


def found(anchor: np.ndarray) -> list[np.ndarray]:
    return [np.ones(size, np.bool_) for size in anchor.shape[:2]]


def scene_of(weights: list[np.ndarray], strength: float = 2.0) -> Scene:
    """These tensors with a mark."""
    key = secret_key(0)
    placement = tuple((f"layer{i}.weight", each.shape) for i, each in enumerate(weights))
    mark = key.at(placement, anchor=bytes(64))
    flat = np.concatenate([each.ravel() for each in weights])
    carriers = Carriers.of(mark, flat.size)
    at = carriers.positions()
    pooled = flat[at].astype(np.float64).reshape(-1, carriers.pools).mean(0)
    change = LeastChange(mark).change(pooled, goal_of(pooled, strength))
    flat[at] += np.tile(change, carriers.per_pool).astype(np.float32)
    ends = np.cumsum([each.size for each in weights])[:-1]
    pieces = zip(np.split(flat, ends), weights, strict=True)
    marked = [piece.reshape(each.shape) for piece, each in pieces]
    return Scene(marked, [coarse(each) for each in weights], mark, carriers)


def secret_key(number: int) -> Key:
    secret = hashlib.sha256(f"cleaning {number}".encode()).digest()
    return Key(Parameters(), b"", salt=secret, secret=secret)


@pytest.fixture(scope="module")
def scene() -> Scene:
    rng = np.random.default_rng(0)
    shapes = [(256, 384), (384, 256)]
    return scene_of([(SIZE * rng.standard_normal(s)).astype(np.float32) for s in shapes])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def null_space(
    tensor: np.ndarray, rng: np.random.Generator, share: float, size: float
) -> np.ndarray:
    """Noise in some directions of the inputs."""
    rows, columns = tensor.shape
    basis, _ = np.linalg.qr(rng.standard_normal((columns, int(share * min(tensor.shape)))))
    change = rng.standard_normal((rows, basis.shape[1])) @ basis.T
    return np.asarray(tensor + size * SIZE * change, np.float32)


def low_rank(tensor: np.ndarray, rng: np.random.Generator, rank: int, times: float) -> np.ndarray:
    """A merged adapter, relative to the norm of the weights."""
    rows, columns = tensor.shape
    change = rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))
    change *= times * np.linalg.norm(tensor) / np.linalg.norm(change)
    return np.asarray(tensor + change, np.float32)


def hit(tensor: np.ndarray, rng: np.random.Generator, share: float, size: float) -> np.ndarray:
    """Single weights with much noise."""
    change = size * SIZE * rng.standard_normal(tensor.shape) * (rng.random(tensor.shape) < share)
    return np.asarray(tensor + change, np.float32)


def test_what_nobody_touched_is_read_as_it_is(scene: Scene) -> None:
    bits, cleaned = scene.read(scene.marked)
    assert bits == 256
    for each, tensor in zip(cleaned, scene.marked, strict=True):
        assert (each.share, each.notes) == (0.0, ())
        np.testing.assert_allclose(each.fill + each.kept, tensor, atol=1e-8)
    assert weigh([each.trust for each in cleaned]) == (1.0, 1.0)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.7])
def test_null_space(scene: Scene, rng: np.random.Generator, share: float) -> None:
    suspects = [null_space(each, rng, share, 20.0) for each in scene.marked]
    assert scene.bits(suspects) < BOUNDARY
    bits, cleaned = scene.read(suspects)
    assert bits >= 250
    count = int(share * 256)
    assert cleaned[0].notes[0] == f"changes in {count} of 256 directions were set aside"
    assert cleaned[0].share == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("times", [4.0, 400.0])
def test_low_rank(scene: Scene, rng: np.random.Generator, times: float) -> None:
    suspects = [low_rank(each, rng, 16, times) for each in scene.marked]
    assert scene.bits(suspects) < BOUNDARY
    bits, cleaned = scene.read(suspects)
    assert bits >= 250
    for each in cleaned:
        told = f"what the suspect differs by is {times:.2g} times the anchor"
        assert each.notes == ("a change of rank 16 was set aside", told)


def test_outliers(scene: Scene, rng: np.random.Generator) -> None:
    suspects = [hit(each, rng, 0.05, 20.0) for each in scene.marked]
    assert scene.bits(suspects) < BOUNDARY
    bits, cleaned = scene.read(suspects)
    assert bits >= 250
    assert "outliers were set aside" in cleaned[0].notes[0]
    assert cleaned[0].share == pytest.approx(0.05, abs=0.01)
    assert (cleaned[0].kept == 0).mean() == pytest.approx(0.05, abs=0.01)


def test_outliers_beside_a_change_of_low_rank(scene: Scene, rng: np.random.Generator) -> None:
    suspects = [hit(low_rank(each, rng, 8, 4.0), rng, 0.002, 500.0) for each in scene.marked]
    bits, cleaned = scene.read(suspects)
    assert bits >= 250
    assert "outliers were set aside" in cleaned[0].notes[0]
    assert "a change of rank" in cleaned[0].notes[1]


def test_zeros(scene: Scene, rng: np.random.Generator) -> None:
    pruned = [np.where(rng.random(t.shape) < 0.8, np.float32(0), t) for t in scene.marked]
    assert scene.bits(pruned) < BOUNDARY
    bits, cleaned = scene.read(pruned)
    assert bits >= 250
    assert cleaned[0].notes[0] == "80 % of the weights are zeros and were not read"
    assert cleaned[0].trust.gain == pytest.approx(0.2, abs=0.01)


def test_zeros_beside_a_change_of_low_rank(scene: Scene, rng: np.random.Generator) -> None:
    """What the directions say stands in for the zeros, so that the rank stays low."""
    merged = [low_rank(each, rng, 8, 2.0) for each in scene.marked]
    pruned = [np.where(np.abs(t) < np.median(np.abs(t)), np.float32(0), t) for t in merged]
    assert scene.bits(pruned) < BOUNDARY
    bits, cleaned = scene.read(pruned)
    assert bits >= 245
    assert [note.split(" was")[0] for note in cleaned[0].notes[1:2]] == ["a change of rank 8"]


@pytest.mark.parametrize("size", [0.5, 3.0])
def test_white_noise_is_left_alone(scene: Scene, rng: np.random.Generator, size: float) -> None:
    suspects = [hit(each, rng, 1.0, size) for each in scene.marked]
    bits, cleaned = scene.read(suspects)
    assert abs(bits - scene.bits(suspects)) <= 2
    for each, suspect in zip(cleaned, suspects, strict=True):
        assert each.notes == ()
        np.testing.assert_array_equal(each.kept, suspect - each.fill)


def test_a_tensor_full_of_noise_counts_little(scene: Scene, rng: np.random.Generator) -> None:
    suspects = [hit(scene.marked[0], rng, 1.0, 50.0), scene.marked[1]]
    assert scene.bits(suspects) < BOUNDARY
    assert scene.read(suspects)[0] >= 250


def test_a_null_space_behind_folded_norms(scene: Scene, rng: np.random.Generator) -> None:
    """Factors of rows and columns that a regression on the anchor cannot see."""
    suspects = [
        null_space(each, rng, 0.5, 20.0)
        * np.exp(0.7 * rng.standard_normal((len(each), 1))).astype(np.float32)
        * np.exp(0.7 * rng.standard_normal(each.shape[1])).astype(np.float32)
        for each in scene.marked
    ]
    assert scene.bits(suspects) < BOUNDARY
    bits, cleaned = scene.read(suspects)
    assert bits >= 245
    assert cleaned[0].notes[-1] == "factors that were hidden by it were divided out"


def test_all_shrunk_and_a_change_of_low_rank(scene: Scene, rng: np.random.Generator) -> None:
    """Weight decay takes most of the weights, and of the mark in them."""
    suspects = [low_rank(np.float32(0.05) * each, rng, 8, 20.0) for each in scene.marked]
    assert scene.bits(suspects) < BOUNDARY
    assert scene.read(suspects)[0] >= 250


def test_rows_of_uneven_noise(scene: Scene, rng: np.random.Generator) -> None:
    sizes = [np.exp(1.5 * rng.standard_normal((len(each), 1))) for each in scene.marked]
    noise = [
        SIZE * rng.standard_normal(each.shape) * n
        for each, n in zip(scene.marked, sizes, strict=True)
    ]
    suspects = [np.asarray(a + b, np.float32) for a, b in zip(scene.marked, noise, strict=True)]
    assert scene.bits(suspects) < BOUNDARY
    bits, cleaned = scene.read(suspects)
    assert bits >= 245
    assert "rows with more change than others count less" in cleaned[0].notes


def test_other_secrets_stay_at_chance(scene: Scene, rng: np.random.Generator) -> None:
    suspects = [null_space(each, rng, 0.5, 20.0) for each in scene.marked]
    cleaned = [clean(*both, found(both[1])) for both in zip(suspects, scene.anchors, strict=True)]
    factors = weigh([each.trust for each in cleaned])
    made = [c.fill + factor * c.kept for c, factor in zip(cleaned, factors, strict=True)]
    placement = tuple((f"layer{i}.weight", each.shape) for i, each in enumerate(made))
    marks = [secret_key(number).at(placement, anchor=bytes(64)) for number in range(1, 101)]
    matched = np.array([scene.bits(made, mark) for mark in marks])
    assert abs(matched.mean() - 128) < 3
    assert matched.max() < 170


KERNELS = (48, 64, 3, 3)


@pytest.fixture(scope="module")
def kernels() -> Scene:
    rng = np.random.default_rng(1)
    return scene_of([(SIZE * rng.standard_normal(KERNELS)).astype(np.float32)] * 4)


def dead_inputs(tensor: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    mixed = rng.standard_normal((6, 64)) @ rng.standard_normal((64, 64))
    change = np.einsum("orhw,ri->oihw", rng.standard_normal((48, 6, 3, 3)), mixed)
    return np.asarray(tensor + SIZE * change, np.float32)


def dead_outputs(tensor: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    mixed = rng.standard_normal((6, 48))
    change = np.einsum("rihw,ro->oihw", rng.standard_normal((6, 64, 3, 3)), mixed)
    return np.asarray(tensor + 4 * SIZE * change, np.float32)


def one_pattern(tensor: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    change = rng.standard_normal((48, 64, 1, 1)) * rng.standard_normal((3, 3))
    return np.asarray(tensor + 20 * SIZE * change, np.float32)


@pytest.mark.parametrize(
    ("attack", "note"),
    [
        (dead_inputs, "a change of rank 6 of the inputs was set aside"),
        (dead_outputs, "a change of rank 6 was set aside"),
        (one_pattern, "a change of rank 1 of the kernel was set aside"),
    ],
)
def test_kernels(kernels: Scene, rng: np.random.Generator, attack: object, note: str) -> None:
    assert callable(attack)
    suspects = [attack(each, rng) for each in kernels.marked]
    assert kernels.bits(suspects) < BOUNDARY
    bits, cleaned = kernels.read(suspects)
    assert bits >= 250
    assert cleaned[0].notes[0] == note
    assert cleaned[0].kept.shape == KERNELS


def test_two_changes_of_kernels(kernels: Scene, rng: np.random.Generator) -> None:
    suspects = [one_pattern(dead_inputs(each, rng), rng) for each in kernels.marked]
    bits, cleaned = kernels.read(suspects)
    assert bits >= 250
    assert len(cleaned[0].notes) == 3


def test_rows_and_columns_that_are_missing(scene: Scene, rng: np.random.Generator) -> None:
    rows, columns = np.arange(256) % 4 != 0, np.arange(384) % 3 != 0
    suspect = null_space(scene.marked[0], rng, 0.2, 20.0)
    suspect[~rows] = 1e9
    suspect[:, ~columns] = np.nan
    cleaned = clean(suspect, scene.anchors[0], (rows, columns))
    here = np.ix_(rows, columns)
    assert not cleaned.kept[~rows].any()
    assert not cleaned.kept[:, ~columns].any()
    alone = clean(suspect[here], scene.anchors[0][here], (rows[rows], columns[columns]))
    np.testing.assert_array_equal(cleaned.kept[here], alone.kept)
    assert cleaned.notes == alone.notes
    assert cleaned.trust.gain == pytest.approx(alone.trust.gain / 2)
    assert cleaned.share == pytest.approx(1 - (1 - alone.share) / 2)
    full = clean(scene.marked[1], scene.anchors[1], found(scene.anchors[1]))
    factors = weigh([cleaned.trust, full.trust])
    made = [c.fill + f * c.kept for c, f in zip((cleaned, full), factors, strict=True)]
    assert scene.bits(made) >= 250


def test_nothing_found(scene: Scene) -> None:
    anchor = scene.anchors[0]
    none = (np.zeros(256, np.bool_), np.ones(384, np.bool_))
    cleaned = clean(scene.marked[0], anchor, none)
    assert cleaned.share == 1.0
    assert not cleaned.kept.any()
    assert weigh([cleaned.trust]) == (0.0,)


def test_nan_is_an_error(scene: Scene) -> None:
    suspect = scene.marked[0].copy()
    suspect[3, 4] = np.nan
    with pytest.raises(NonFiniteError):
        clean(suspect, scene.anchors[0], found(suspect))


def test_absurd_values_are_set_aside(scene: Scene) -> None:
    suspect = scene.marked[0].copy()
    suspect[3, 4], suspect[5, 6] = 3e38, -3e38
    cleaned = clean(suspect, scene.anchors[0], found(suspect))
    assert cleaned.notes[0] == "2 outliers were set aside"
    assert cleaned.kept[3, 4] == 0
    assert np.isfinite(cleaned.kept).all()
    assert cleaned.trust.gain > 0.99


@pytest.mark.parametrize("shape", [(64,), (1, 64), (64, 1), (8, 1, 1, 1), (2, 2)])
@pytest.mark.parametrize("value", [0.0, 1.0, 1e30])
def test_odd_shapes_and_equal_weights(shape: tuple[int, ...], value: float) -> None:
    anchor = coarse(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    suspect = np.full(shape, value, np.float32)
    cleaned = clean(suspect, anchor, found(anchor))
    assert cleaned.kept.shape == shape
    assert np.isfinite(cleaned.kept).all()
    assert np.isfinite(weigh([cleaned.trust])[0])


def test_an_anchor_of_zeros_leaves_the_suspect_alone() -> None:
    suspect = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    cleaned = clean(suspect, np.zeros((8, 8), np.float32), found(suspect))
    np.testing.assert_array_equal(cleaned.kept, suspect)


def test_rounding_is_known_from_the_steps_of_the_rows() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 512)) * rng.uniform(0.1, 10, (64, 1))
    made = coarse(weights.astype(np.float32))
    assert rounding_of(made) == pytest.approx(np.square(made - weights).mean(), rel=0.05)
    assert rounding_of(np.zeros((2, 2), np.float32)) == 0.0


def test_weights_by_noise_have_the_whole_mark() -> None:
    parts = [Trust(100, 0.5, 2.0, 0.01), Trust(300, 1.0, 1.0, 0.02), Trust(50, 0.0, 0.0, 0.01)]
    factors = weigh(parts)
    whole = sum(p.size * p.gain * f for p, f in zip(parts, factors, strict=True))
    assert whole == pytest.approx(450, rel=1e-3)
    assert factors[0] == pytest.approx(factors[1] / 4, rel=0.02)
    assert factors[2] == 0.0


def test_fine_tuning_of_a_real_network() -> None:
    """Trained on real digits, marked, then trained on others."""
    data = load_digits()
    low = data.target < 5
    network = MLPClassifier((256, 128), learning_rate_init=0.003, random_state=0, max_iter=1)
    for _ in range(15):
        network.partial_fit(data.data[low] / 16, data.target[low], classes=range(10))
    scene = scene_of(hidden_weights(network), strength=0.5)
    for layer, marked in zip((1, 0), scene.marked, strict=True):
        network.coefs_[layer][...] = marked.T
    for _ in range(25):
        network.partial_fit(data.data[~low] / 16, data.target[~low], classes=range(10))
    tuned = hidden_weights(network)
    assert scene.bits(tuned) < BOUNDARY
    assert scene.read(tuned)[0] >= 250


def hidden_weights(network: MLPClassifier) -> list[np.ndarray]:
    return [network.coefs_[layer].T.astype(np.float32) for layer in (1, 0)]
