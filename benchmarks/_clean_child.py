"""Child of against_anchor: a large tensor cleaned (processor time, peak memory); or a digest."""

import hashlib
import json
import sys
import time

import numpy as np

from benchmarks._against import coarse, everything
from benchmarks._common import peak_bytes
from neuralmark.anchors.cleaning import clean

SHAPE, SIZE, FREE = (4096, 11008), np.float32(0.02), 1000


def with_threads(count: int) -> dict[str, str]:
    """Digest of what is kept of attacked tensors, with so many threads of the BLAS."""
    from threadpoolctl import threadpool_limits

    rng, digest = np.random.default_rng(0), hashlib.sha256()
    with threadpool_limits(count):
        for shape in ((1024, 1024), (700, 1500), (256, 256, 3, 3)):
            weights = SIZE * rng.standard_normal(shape, dtype=np.float32)
            flat = weights.reshape(len(weights), -1)
            update = rng.standard_normal((len(flat), 200)) @ rng.standard_normal(
                (200, flat.shape[1])
            )
            suspect = np.asarray(weights + 0.01 * update.reshape(shape), np.float32)
            anchor = coarse(weights)
            cleaned = clean(suspect, anchor, everything(anchor))
            digest.update(np.ascontiguousarray(cleaned.kept).tobytes())
            digest.update(repr(cleaned.notes).encode())
    return {"digest": digest.hexdigest()}


def main() -> int:
    kind = sys.argv[1]
    if kind == "threads":
        print(json.dumps(with_threads(int(sys.argv[2]))))
        return 0
    rng = np.random.default_rng(0)
    weights = SIZE * rng.standard_normal(SHAPE, dtype=np.float32)
    anchor = coarse(weights)
    if kind == "null space":
        basis, _ = np.linalg.qr(rng.standard_normal((SHAPE[1], FREE), dtype=np.float32))
        for row in range(0, len(weights), 512):
            drawn = rng.standard_normal((512, FREE), dtype=np.float32)
            weights[row : row + 512] += np.float32(20) * SIZE * drawn @ basis.T
    elif kind == "pruned":
        weights[rng.random(SHAPE, dtype=np.float32) < 0.5] = 0
    with open("/proc/self/clear_refs", "w") as file:  # the peak begins here
        file.write("5")
    start = time.process_time()
    cleaned = clean(weights, anchor, everything(anchor))
    told = {
        "seconds": time.process_time() - start,
        "bytes": peak_bytes(),
        "told": "; ".join(cleaned.notes[:-1]),
    }
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
