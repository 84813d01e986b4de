"""Parts that do not cover their tensor, in every way: held against counting each element."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from neuralmark.checkpoints.contract import StoredTensor, TensorInfo
from neuralmark.checkpoints.readers.joined import (
    JoinedPart,
    Source,
    alone,
    covered,
    joined,
)
from neuralmark.checkpoints.readers.windows import WindowPlace
from neuralmark.errors import MalformedError
from tests.support.ranges import range_server

Box = tuple[tuple[int, ...], tuple[int, ...]]


def counted(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    """The same by counting how often each element is covered."""
    room = np.zeros([length + 9 for length in shape], int)
    for offsets, sizes in boxes:
        room[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))] += 1
    inside = room[tuple(slice(length) for length in shape)]
    return bool((inside == 1).all()) and inside.sum() == room.sum()


def cut(rng: np.random.Generator, box: Box, times: int) -> list[Box]:
    """A box in pieces that cover it: cut in two along any dimension, again and again."""
    offsets, sizes = box
    axis = int(rng.integers(len(sizes)))
    if not times or sizes[axis] < 2:
        return [box]
    at = int(rng.integers(1, sizes[axis]))
    low = (*sizes[:axis], at, *sizes[axis + 1 :])
    high = (*sizes[:axis], sizes[axis] - at, *sizes[axis + 1 :])
    moved = (*offsets[:axis], offsets[axis] + at, *offsets[axis + 1 :])
    return cut(rng, (offsets, low), times - 1) + cut(rng, (moved, high), times - 1)


def test_covering_is_what_counting_says() -> None:
    rng = np.random.default_rng(0)
    seen = {True: 0, False: 0}
    for _ in range(600):
        shape = tuple(rng.integers(1, 7, rng.integers(1, 4)).tolist())
        boxes = cut(rng, ((0,) * len(shape), shape), int(rng.integers(4)))
        if rng.random() < 0.6:  # one of them is moved, or there twice in the place of another
            which, other = rng.integers(len(boxes), size=2)
            offsets, sizes = boxes[which]
            moved = tuple(max(0, o + int(rng.integers(-1, 2))) for o in offsets)
            boxes[which] = (moved, sizes) if rng.random() < 0.5 else boxes[other]
        rng.shuffle(boxes)
        expected = counted(shape, boxes)
        assert covered(shape, boxes) == expected
        seen[expected] += 1
    assert min(seen.values()) > 100


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((4,), [((0, 0), (4, 1))]),  # of another number of dimensions
        ((4,), [((0,), (2,)), ((2,), (2, 1))]),
        ((2,), [((0,), (1,)), ((0,), (1,))]),  # one twice, one missing
        ((2, 2), [((0, 0), (1, 2)), ((0, 0), (1, 2))]),
        ((3, 3), [((0, 0), (2, 2)), ((1, 1), (2, 2)), ((0, 2), (1, 1))]),
        ((), [((), ()), ((), ())]),
        ((4,), []),
    ],
)
def test_boxes_that_do_not_cover(shape: tuple[int, ...], boxes: list[Box]) -> None:
    assert not covered(shape, boxes)


def pinwheel(at: int) -> list[Box]:
    """Five boxes of which no line cuts two apart, as no writer makes them."""
    turns = [
        ((0, 0), (1, 2)),
        ((0, 2), (2, 1)),
        ((2, 1), (1, 2)),
        ((1, 0), (2, 1)),
        ((1, 1), (1, 1)),
    ]
    return [((o[0], o[1] + at), s) for o, s in turns]


def test_boxes_without_order_are_compared_if_they_are_few() -> None:
    assert covered((3, 3), pinwheel(0))
    assert not covered((3, 3), [*pinwheel(0)[:4], ((0, 0), (1, 1))])
    many = [box for n in range(103) for box in pinwheel(3 * n)]
    assert len(many) > 512
    assert covered((3, 3 * 102), many[: 5 * 102])
    assert not covered((3, 3 * 103), many)  # sound, but nobody saves so


def test_many_boxes_take_no_time() -> None:
    """80,000 fit into the metadata of a distributed checkpoint."""
    boxes = [((row, column), (1, 1)) for row in range(20_000) for column in range(2)]
    begun = time.monotonic()
    assert covered((20_000, 2), boxes)
    assert not covered((20_000, 2), [*boxes[:-1], boxes[0]])
    assert time.monotonic() - begun < 10


def stored(path: Path, array: np.ndarray, dtype: str, **more: object) -> StoredTensor:
    path.write_bytes(array.tobytes())
    return StoredTensor(TensorInfo("w", dtype, array.shape), path, 0, **more)  # type: ignore[arg-type]


def test_parts_that_do_not_lie_in_order_are_read_in_order(tmp_path: Path) -> None:
    array = np.arange(12, dtype="<f2").reshape(3, 4)
    turned = StoredTensor(TensorInfo("w", "F16", (4, 3)), tmp_path / "w", 0, (1, 4))
    (tmp_path / "w").write_bytes(array.tobytes())
    source = Source.of(turned)
    assert np.array_equal(source.values(2, 7), array.T.reshape(-1)[2:7])
    os.truncate(tmp_path / "w", 20)
    assert np.array_equal(source.values(0, 12), array.T.reshape(-1))  # it was read whole
    with pytest.raises(MalformedError):
        Source.of(turned).values(0, 1)


def test_what_holds_no_weights_stays_an_obstacle(tmp_path: Path) -> None:
    integers = stored(tmp_path / "i", np.arange(4), "I64")
    part = JoinedPart((0,), (4,), Source.of(integers))
    made = joined("i", (4,), [part], dtype="I64", at=(tmp_path / "i", 0), why="why")
    assert made.info.obstacle == "its values are I64, which hold no weights"
    odd = StoredTensor(TensorInfo("o", "sparse", (2,), "it is odd"), tmp_path / "i", 0)
    assert alone(odd, "why") is odd


def test_a_window_shows_a_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(bytes(range(100)))
    window = WindowPlace(tmp_path / "whole", 10, 20)
    assert window.read_bytes() == bytes(range(10, 30))
    assert (window.name, window.size()) == ("whole", 20)
    assert window.is_file()
    assert not window.is_dir()
    assert list(window.iterdir()) == []
    assert window / "../secret" == window.parent == window  # nothing else is reached through it
    before = window.stamp()
    assert window.stamp() == before
    (tmp_path / "whole").write_bytes(bytes(50))
    assert window.stamp() != before
    room = memoryview(bytearray(8))
    assert window.read_into(room, 15) == 5
    assert window.read_into(room, 99) == 0


def test_a_window_into_a_file_behind_a_url(tmp_path: Path) -> None:
    from neuralmark import RemoteOptions, at_url

    with range_server() as server:
        url = server.put("/m.bin", bytes(range(100)))
        base = at_url(url, RemoteOptions(allow_private=True, cache=False))
        window = WindowPlace(base, 10, 20)
        assert window.read_bytes() == bytes(range(10, 30))
        before = window.stamp()
        assert before == base.stamp()
        server.put("/m.bin", bytes(100))
        assert window.stamp() != before
