"""Child of against_anchor: one large tensor cleaned; processor time and peak memory."""

import json
import sys
import time

import numpy as np

from benchmarks._anchored import coarse, everything
from benchmarks._common import peak_bytes
from neuralmark.anchors.cleaning import clean

SHAPE, SIZE, FREE = (4096, 11008), np.float32(0.02), 1000


def main() -> int:
    kind = sys.argv[1]
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
