"""Converting a model: other names, layouts, tensors fused or taken apart; the function stays.

What loaders, runtimes and training tools do to every published model, and what a thief can do for
nothing: names and numbers of layers, axes in another order, queries, keys and values in one tensor,
layers in a stack, shards, masks, weight norms, adapters, norms folded away, a layer as two. None of
it needs data. A mark that is read by position and name does not survive most of it; with an anchor
each part is found by its likeness.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from neuralmark.attacks.contract import Array, Attack, Outcome, Scene, option
from neuralmark.attacks.tools import converting, fusing, wrapping
from neuralmark.attacks.tools.converting import Conversion

ConversionWay = Literal[
    "rename",
    "prefix",
    "transpose",
    "conv1d",
    "ohwi",
    "hwio",
    "flatten",
    "dtype",
    "stack-layers",
    "renumber",
    "insert",
    "duplicate",
    "drop",
    "fuse-qkv",
    "fuse-heads",
    "fuse-gate-up",
    "fuse-up-gate",
    "split-qkv",
    "shard-rows",
    "shard-columns",
    "rotary",
    "prune-mask",
    "weight-norm",
    "lora",
    "lora-merged",
    "factor",
    "fold-norms",
]
"""What is made of a model."""

WAYS: dict[ConversionWay, Callable[[Conversion], dict[str, Array]]] = {
    "rename": converting.rename,
    "prefix": converting.prefix,
    "transpose": converting.transpose,
    "conv1d": converting.conv1d,
    "ohwi": converting.ohwi,
    "hwio": converting.hwio,
    "flatten": converting.flatten,
    "dtype": converting.half,
    "stack-layers": converting.stack,
    "renumber": converting.renumber,
    "insert": converting.insert,
    "duplicate": converting.duplicate,
    "drop": converting.drop,
    "fuse-qkv": fusing.fuse_qkv,
    "fuse-heads": fusing.fuse_heads,
    "fuse-gate-up": fusing.fuse_gate_up,
    "fuse-up-gate": fusing.fuse_up_gate,
    "split-qkv": fusing.split_qkv,
    "shard-rows": fusing.shard_rows,
    "shard-columns": fusing.shard_columns,
    "rotary": fusing.rotary,
    "prune-mask": wrapping.mask,
    "weight-norm": wrapping.weight_norm,
    "lora": wrapping.adapter,
    "lora-merged": wrapping.merged_adapter,
    "factor": wrapping.factor,
    "fold-norms": wrapping.fold,
}
"""Every conversion, by its name."""


@dataclass(frozen=True)
class Convert(Attack):
    """Store the same network under other names, shapes and parts."""

    summary: ClassVar[str] = "convert it: other names, layouts, fused tensors"
    expects: ClassVar[str] = "by position most conversions hide the mark; an anchor finds each part"

    how: ConversionWay = option("rename", "the conversion", choices=tuple(WAYS))
    heads: int = option(0, "attention heads (0: as the model's configuration tells)", low=0)
    pieces: int = option(4, "pieces that a sharded tensor is cut into", low=2, high=1024)
    rank: int = option(8, "rank of an adapter", low=1, high=4096)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Each conversion once."""
        return tuple(cls(how) for how in WAYS)

    @property
    def variant(self) -> str:
        """The conversion."""
        return self.how

    def run(self, scene: Scene) -> Outcome:
        """Convert all tensors; what is no longer there is told."""
        heads = self.heads or scene.heads
        work = Conversion(
            scene.weights, frozenset(scene.target), scene.rng, heads, self.pieces, self.rank
        )
        made = WAYS[self.how](work)
        changed = {n: v for n, v in made.items() if v is not scene.weights.get(n)}
        gone = tuple(name for name in scene.weights if name not in made)
        figures = {"tensors": float(len(made)), "changed": float(len(changed))}
        note = f"{len(scene.weights)} tensors became {len(made)}"
        return Outcome(changed, gone=gone, note=note, figures=figures)
