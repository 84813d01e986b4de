"""Reading ahead: what will be read is fetched in parallel, in pieces, and never much of it is held.

Whoever streams a tensor says so first (`expect`). Its bytes, and those of neighbours that lie
close, are cut into pieces, fetched by a few threads in the order of need, and dropped when they
were read.
Small reads that nobody announced (headers) fetch a little more than they ask for.
"""

import threading
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

PIECE = 4 << 20
"""Bytes that one request fetches of what is read ahead."""
SMALL = 64 << 10
"""Reads below this are rounded up, where one seems to follow the other."""
MOST_KEPT = 256 << 10
"""Reads up to this that nobody announced are held for a while: headers are read more than once."""
LEAST = 4 << 10
"""A small read that stands alone fetches this much."""
MOST_GAP = 0.04
"""Neighbours are fetched together if no more than this share of it is in vain."""
_MOST_BLOCKS = 64
_FIRST_AHEAD = 2

Get = Callable[[str, int, int], bytes | bytearray]


@dataclass(eq=False)
class FetchedPiece:
    """A stretch of a file that will be read."""

    path: str
    start: int
    stop: int
    unread: int = 0
    result: Future[bytes | bytearray] = field(default_factory=Future)
    begun: bool = False


class Fetcher:
    """Fetches for all files of one service; at most `connections` + 2 pieces are held at once."""

    def __init__(self, get: Get, connections: int) -> None:
        """`get` gives all bytes of a range, or raises; it is called from several threads."""
        self._get, self._most = get, connections + 2
        self._ahead = _FIRST_AHEAD
        self._lock = threading.Lock()
        self._planned: deque[FetchedPiece] = deque()
        self._held: list[FetchedPiece] = []
        self._pieces: dict[str, list[tuple[int, FetchedPiece]]] = {}
        self._blocks: OrderedDict[tuple[str, int], bytes | bytearray] = OrderedDict()
        self._last: dict[str, int] = {}

    def read_into(self, path: str, buffer: memoryview, at: int, size: int) -> int:
        """Fill the buffer from a file of this size; gives how many bytes there were."""
        length = max(0, min(len(buffer), size - at))
        done = 0
        while done < length:
            done += self._some(path, buffer[done:length], at + done, size)
        return length

    def expect(self, path: str, ranges: Sequence[tuple[int, int]], size: int) -> None:
        """Plan to fetch these (start, stop), in this order; what is planned already stays so."""
        with self._lock:
            news = [
                part
                for start, stop in ranges
                for part in self._uncovered(path, max(0, start), min(stop, size))
            ]
            pieces = [FetchedPiece(path, *part) for part in _cut(merged(news))]
            if not pieces:
                return
            for piece in pieces:
                piece.unread = piece.stop - piece.start
                insort(self._pieces.setdefault(path, []), (piece.start, piece), key=_start)
            self._planned.extendleft(reversed(pieces))
            self._ahead = _FIRST_AHEAD
            self._make_room()
            self._begin_next()

    def put(self, path: str, start: int, data: bytes) -> None:
        """Hold a block that came without being asked for."""
        with self._lock:
            self._keep_block(path, start, data)

    def _some(self, path: str, buffer: memoryview, at: int, size: int) -> int:
        """A part of what is wanted, at least a byte of it."""
        with self._lock:
            block = self._block_at(path, at)
            piece, limit = self._piece_at(path, at)
            if block is None and piece is not None and not piece.begun:
                self._planned.remove(piece)
                self._begin(piece)
            follows = at in (0, self._last.get(path)) or at >= size - 2 * SMALL
            self._last[path] = at + len(buffer)
        if block is not None:
            start, data = block
            return _copy(data, at - start, buffer)
        if piece is not None:
            return self._from_piece(piece, buffer, at)
        wanted = min(len(buffer), limit - at)
        if wanted > PIECE:
            self.expect(path, [(at, at + wanted)], size)
            return 0
        if wanted > MOST_KEPT:
            return _copy(self._get(path, at, at + wanted), 0, buffer)
        stop = min(size, limit, at + max(wanted, SMALL if follows else LEAST))
        data = self._get(path, at, stop)
        self.put(path, at, bytes(data))
        return _copy(data, 0, buffer)

    def _from_piece(self, piece: FetchedPiece, buffer: memoryview, at: int) -> int:
        try:
            data = piece.result.result()
        except BaseException:
            with self._lock:
                self._drop(piece)
            raise
        done = _copy(data, at - piece.start, buffer)
        with self._lock:
            piece.unread -= done
            if piece.unread <= 0:
                self._drop(piece)
                self._ahead = min(self._most, self._ahead + 2)
                self._begin_next()
        return done

    def _begin_next(self) -> None:
        while self._planned and len(self._held) < self._ahead:
            self._begin(self._planned.popleft())

    def _begin(self, piece: FetchedPiece) -> None:
        piece.begun = True
        self._held.append(piece)
        threading.Thread(target=self._run, args=[piece], daemon=True).start()

    def _run(self, piece: FetchedPiece) -> None:
        try:
            piece.result.set_result(self._get(piece.path, piece.start, piece.stop))
        except BaseException as error:
            piece.result.set_exception(error)

    def _make_room(self) -> None:
        """Drop what was fetched ahead and is not read: the reader has gone elsewhere."""
        for piece in [each for each in self._held if each.result.done()]:
            if len(self._held) < self._most:
                return
            self._drop(piece)

    def _drop(self, piece: FetchedPiece) -> None:
        if piece in self._held:
            self._held.remove(piece)
        of_file = self._pieces.get(piece.path, [])
        if (piece.start, piece) in of_file:
            of_file.remove((piece.start, piece))

    def _piece_at(self, path: str, at: int) -> tuple[FetchedPiece | None, int]:
        """The piece that holds a byte; else where the next one begins."""
        of_file = self._pieces.get(path, [])
        index = bisect_right(of_file, at, key=_start)
        if index and at < of_file[index - 1][1].stop:
            return of_file[index - 1][1], 0
        return None, of_file[index][0] if index < len(of_file) else 1 << 62

    def _uncovered(self, path: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of a range that are neither planned nor held."""
        while start < stop:
            block = self._block_at(path, start)
            piece, limit = self._piece_at(path, start)
            if block is not None:
                start = block[0] + len(block[1])
            elif piece is not None:
                start = piece.stop
            else:
                yield start, min(stop, limit)
                start = min(stop, limit)

    def _block_at(self, path: str, at: int) -> tuple[int, bytes | bytearray] | None:
        for (name, start), data in self._blocks.items():
            if name == path and start <= at < start + len(data):
                self._blocks.move_to_end((name, start))
                return start, data
        return None

    def _keep_block(self, path: str, start: int, data: bytes) -> None:
        self._blocks[path, start] = data
        while len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours put together where little lies between them, in the order of first need.

    >>> merged([(1000, 2000), (0, 1000), (2010, 3000), (9000, 9500)])
    [(0, 3000), (9000, 9500)]
    """
    found: list[list[int]] = []
    for order, (start, stop) in sorted(enumerate(ranges), key=lambda each: each[1]):
        last = found[-1] if found else None
        if last is not None and start - last[1] <= MOST_GAP * (stop - last[0]):
            gap = max(0, start - last[1])
            if last[3] + gap <= MOST_GAP * (stop - last[0]):
                last[1], last[2], last[3] = max(last[1], stop), min(last[2], order), last[3] + gap
                continue
        found.append([start, stop, order, 0])
    return [(start, stop) for start, stop, _, _ in sorted(found, key=lambda each: each[2])]


def _cut(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start, stop in ranges:
        for at in range(start, stop, PIECE):
            yield at, min(at + PIECE, stop)


def _start(item: tuple[int, FetchedPiece]) -> int:
    return item[0]


def _copy(data: bytes | bytearray, skip: int, buffer: memoryview) -> int:
    count = min(len(data) - skip, len(buffer))
    buffer[:count] = memoryview(data)[skip : skip + count]
    return count
