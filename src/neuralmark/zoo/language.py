"""GPT-2 with LoRA as the paper trains it: rank 4, factor 32, dropout 0.1, on every c_attn."""

from dataclasses import dataclass
from typing import Any, ClassVar

from neuralmark.core.key import TILED, Parameters
from neuralmark.errors import ParameterError
from neuralmark.text import gpt2
from neuralmark.zoo.architectures import Architecture

MAX_LAYERS = 48


@dataclass(frozen=True)
class GPT2(Architecture):
    """Options: `weights` (a folder, or a name on the hub), `layers` (0: all), `lora` (False: none).

    Without `weights` all weights are fresh, by configuration; nothing is downloaded then.
    """

    parameters = Parameters(rounds=10, filter=TILED)
    input_size = (1024,)
    kind = "text"

    width: ClassVar[int]
    depth: ClassVar[int]
    heads: ClassVar[int]
    vocabulary: ClassVar[int] = gpt2.VOCABULARY_SIZE
    """Number of tokens; where it is not GPT-2's own, they are learnt from the text."""

    weights: str = ""
    layers: int = 0
    lora: bool = True

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        if isinstance(self.layers, bool) or not isinstance(self.layers, int):
            raise ParameterError(f"layers must be a whole number, not {self.layers!r}")
        if not 0 <= self.layers <= MAX_LAYERS:
            raise ParameterError(f"layers must be from 0 to {MAX_LAYERS}, not {self.layers}")
        if self.weights and self.layers not in (0, self.depth):
            raise ParameterError("layers is for fresh weights; finished ones bring their own")

    @property
    def marked(self) -> tuple[str, ...]:
        """The LoRA product of the last block's c_attn; without LoRA the weight itself."""
        last = f"transformer.h.{(self.layers or self.depth) - 1}.attn.c_attn"
        return (f"{last}.lora_delta" if self.lora else f"{last}.weight",)

    @property
    def learns_tokens(self) -> bool:
        """Whether its vocabulary is learnt from the text that it is trained on."""
        return self.vocabulary != gpt2.VOCABULARY_SIZE

    def make(self, classes: int) -> Any:
        """A language model, wrapped by peft unless `lora` is off."""
        base = self._finished() if self.weights else self._fresh()
        return gpt2.with_lora(base, seed=None) if self.lora else base

    def _fresh(self) -> Any:
        return gpt2.fresh_model(
            layers=self.layers or self.depth,
            width=self.width,
            heads=self.heads,
            positions=self.input_size[0],
            vocabulary=self.vocabulary,
            end=0 if self.learns_tokens else None,
        )

    def _finished(self) -> Any:
        """Weights from a folder or the hub, safetensors only: a pickle would be executed."""
        found = gpt2.load_model(self.weights)
        config = found.config
        if (config.n_embd, config.n_layer) != (self.width, self.depth):
            raise ParameterError(
                f"{self.weights!r} is {config.n_embd} wide with {config.n_layer} blocks;"
                f" {self.title} has {self.width} and {self.depth}"
            )
        return found
