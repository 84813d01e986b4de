"""Child processes of `verify_large`: one way of verifying, timed inside, peak memory of the whole.

    python -m benchmarks._verify_child {claim,tensor,search,baseline} FOLDER KEY

Imports come before the clock starts, for all alike.
"""

import json
import sys
import time
from pathlib import Path

from benchmarks._checkpoint import MARKED
from benchmarks._common import peak_bytes


def ours(way: str, folder: Path, key_file: Path) -> tuple[float, int]:
    """Seconds and matched bits of `neuralmark.verify`."""
    import neuralmark
    import neuralmark.checkpoints.folder
    import neuralmark.checkpoints.safetensors
    import neuralmark.marking.verification

    load, verify = neuralmark.Key.load, neuralmark.verify
    start = time.perf_counter()
    key = load(key_file)
    if way == "claim":
        verdict = verify(folder, key, claim=f"{folder}.kept.json")
    elif way == "tensor":
        verdict = verify(folder, key, tensors=[MARKED])
    else:
        verdict = verify(folder, key)
    spent = time.perf_counter() - start
    assert verdict.verified
    assert "torch" not in sys.modules
    return spent, verdict.matched


def baseline(folder: Path, key_file: Path) -> tuple[float, int]:
    """Every tensor materialised with safetensors, then the published steps with torch.

    K, b and the number of rounds come from a file, so the baseline derives nothing.
    """
    import numpy as np
    import torch
    from safetensors import safe_open

    torch.set_num_threads(2)
    with np.load(key_file.with_suffix(".npz")) as saved:
        K, b, rounds = (
            torch.from_numpy(saved["K"]),
            torch.from_numpy(saved["b"]).bool(),
            int(saved["R"]),
        )
    start = time.perf_counter()
    tensors = {}
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                tensors[name] = file.get_tensor(name).clone()
    w = tensors[MARKED].float().flatten()
    k, n = K.shape
    for _ in range(rounds):
        w = w[: len(w) // n * n]
        w = w[b.repeat(len(w) // n)]
    pooled = w[: len(w) // k * k].reshape(-1, k).mean(0)
    extracted = torch.sigmoid(pooled @ K) > 0.5
    matched = int((extracted == b).sum())
    return time.perf_counter() - start, matched


def main() -> None:
    way, folder, key_file = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    spent, matched = (
        baseline(folder, key_file) if way == "baseline" else ours(way, folder, key_file)
    )
    print(json.dumps({"seconds": spent, "matched": matched, "peak": peak_bytes()}))


if __name__ == "__main__":
    main()
