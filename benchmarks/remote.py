"""Verifying one tensor of a large checkpoint behind a URL: how much is fetched, and how fast.

    python -m benchmarks.remote [--gigabytes 4] [--repeats 5] [--json]

A sparse safetensors file of 4 GB in tensors of 4096 x 11008 (bfloat16), one of them marked, is
served with ranges by another process on loopback. `neuralmark.verify` by the claim, nothing cached,
must be sent at most 1.1 times the bytes of header and marked tensor (counted by the server). The
tensor's bytes are then read through a URL, and by one plain request for the same range
(`http.client`), in turn: as fast as the machine goes, and from a server that answers after 30 ms
and sends 25 MB/s on each connection, as servers far away do; there, reading must be at least twice
as fast.
"""

import http.client
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import neuralmark
from benchmarks import _tensors
from benchmarks._common import Report, interleaved, median, parser, scratch, seconds_of
from neuralmark import Key, RemoteOptions
from neuralmark.core.encoding import canonical_json
from neuralmark.remote.transfer import metering

SHAPE = (4096, 11008)
BYTES = 2 * SHAPE[0] * SHAPE[1]
FAR = RemoteOptions(allow_private=True, cache=False)
DELAY, SPEED = 0.03, 25e6


def name_of(index: int) -> str:
    return f"model.layers.{index}.mlp.down_proj.weight"


def sparse(path: Path, count: int, marked: int, raw: bytes) -> int:
    """Tensors of zeros that take no room, one with content; gives the length of the header."""
    header = {
        name_of(i): {
            "dtype": "BF16",
            "shape": list(SHAPE),
            "data_offsets": [i * BYTES, (i + 1) * BYTES],
        }
        for i in range(count)
    }
    told = canonical_json(header)
    with path.open("wb") as file:
        file.write(len(told).to_bytes(8, "little") + told)
        file.seek(8 + len(told) + marked * BYTES)
        file.write(raw)
        file.truncate(8 + len(told) + count * BYTES)
    return 8 + len(told)


def served(path: Path, sent: Any, port: Any, slow: bool) -> None:
    """Serve ranges of one file until killed; count what is sent."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

        def do_GET(self) -> None:
            size = path.stat().st_size
            low, _, high = self.headers["Range"].removeprefix("bytes=").partition("-")
            start, stop = int(low), min(int(high) + 1, size)
            time.sleep(DELAY if slow else 0)
            self.send_response(206)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.send_header("ETag", '"benchmark"')
            self.end_headers()
            self.wfile.flush()
            with path.open("rb") as file:
                begun, first = time.monotonic(), start
                while start < stop:
                    step = min(stop - start, 256 << 10) if slow else stop - start
                    start += os.sendfile(self.connection.fileno(), file.fileno(), start, step)
                    ahead = (start - first) / SPEED - (time.monotonic() - begun)
                    time.sleep(max(0.0, ahead) if slow else 0)
            with sent.get_lock():
                sent.value += stop - first

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        port.value = server.server_address[1]
        server.serve_forever()


@contextmanager
def serving(path: Path, *, slow: bool = False) -> Iterator[tuple[str, Any]]:
    """The URL of a file, and the count of what was sent."""
    sent, port = multiprocessing.Value("q", 0), multiprocessing.Value("i", 0)
    process = multiprocessing.Process(target=served, args=(path, sent, port, slow), daemon=True)
    process.start()
    while not port.value:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port.value}/{path.name}", sent
    finally:
        process.terminate()
        process.join()


def through_place(url: str, at: int) -> None:
    """The marked tensor's bytes as a checkpoint reads them."""
    place = neuralmark.at_url(url, FAR)
    place.expect([(at, BYTES)])
    room = bytearray(2 << 20)
    for start in range(at, at + BYTES, len(room)):
        assert place.read_into(memoryview(room)[: at + BYTES - start], start)


def plainly(url: str, at: int) -> None:
    """The same bytes by one request."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.request("GET", parts.path, headers={"Range": f"bytes={at}-{at + BYTES - 1}"})
    answer = connection.getresponse()
    room, left = memoryview(bytearray(2 << 20)), BYTES
    while left:
        left -= answer.readinto(room[:left])
    connection.close()


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--gigabytes", type=float, default=4.0)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--folder", type=Path, help="where the files are made (and removed)")
    chosen = options.parse_args(arguments)
    report = Report("one tensor of a large checkpoint behind a URL", chosen.json)
    count = max(2, round(chosen.gigabytes * 1e9 / BYTES))
    marked = count // 2
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(SHAPE, dtype=np.float32) * np.float32(0.02)
    with scratch(chosen.folder) as folder:
        _tensors.save(
            folder / "one.safetensors", {name_of(marked): _tensors.bfloat16(weights)}, "BF16"
        )
        key = Key.new()
        alone = neuralmark.EmbedOptions(tensors=[name_of(marked)], anchor=False)
        made = neuralmark.embed(folder / "one.safetensors", key, folder / "m.safetensors", alone)
        raw = (folder / "m.safetensors").read_bytes()[-BYTES:]
        path = folder / "model.safetensors"
        header = sparse(path, count, marked, raw)
        with serving(path) as (url, sent):
            before = metering.traffic()
            verdict = neuralmark.verify(neuralmark.at_url(url, FAR), key, claim=made.claim)
            assert verdict.verified
            requests = (metering.traffic() - before).requests
            ratio = sent.value / (header + BYTES)
            figures = [
                f"{path.stat().st_size:,}",
                f"{header + BYTES:,}",
                f"{sent.value:,}",
                requests,
            ]
            head = ["checkpoint", "header and tensor", "sent", "requests"]
            report.table(head, [figures], "bytes, counted by the server")
        rows, speeds = [], []
        for slow in (False, True):
            with serving(path, slow=slow) as (url, _):
                at = header + marked * BYTES
                mine, peer = interleaved(
                    chosen.repeats,
                    partial(seconds_of, partial(through_place, url, at)),
                    partial(seconds_of, partial(plainly, url, at)),
                )
            speeds.append(median(peer) / median(mine))
            rates = [f"{BYTES / median(each) / 1e6:.0f} MB/s" for each in (mine, peer)]
            rows.append(
                ["30 ms, 25 MB/s each" if slow else "loopback", *rates, f"{speeds[-1]:.2f}"]
            )
    report.table(["server", "URL", "one request", "times as fast"], rows, "reading the tensor")
    report.target("sent / needed", ratio, "at most 1.1", passed=ratio <= 1.1)
    report.target("speed, far", speeds[1], "at least 2", passed=speeds[1] >= 2)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
