"""GPT-2 with LoRA as the paper trains it: rank 4, factor 32, dropout 0.1, on every c_attn.

Needs transformers and peft. torchvision, where it is installed, is put right first (see
`neuralmark._torchvision`), as transformers imports it.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from safetensors import SafetensorError

from neuralmark.core.key import Parameters
from neuralmark.errors import MalformedError, MissingDataError, MissingExtraError, ParameterError
from neuralmark.zoo._architecture import Architecture

RANK, FACTOR, DROPOUT = 4, 32, 0.1
MAX_LAYERS = 48
_INSTALL = "pip install 'neuralmark[transformers,peft]'"


@dataclass(frozen=True)
class GPT2(Architecture):
    """Options: `weights` (a folder, or a name on the hub), `layers` (0: all), `lora` (0: none).

    Without `weights` all weights are fresh, by configuration; nothing is downloaded then.
    """

    parameters = Parameters(rounds=10)
    input_size = (1024,)
    kind = "text"

    width: ClassVar[int]
    depth: ClassVar[int]
    heads: ClassVar[int]

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

    def make(self, classes: int) -> Any:
        """A language model, wrapped by peft unless `lora` is off."""
        _need("neuralmark._torchvision")
        base = self._finished() if self.weights else self._fresh()
        if not self.lora:
            return base
        peft = _need("peft")
        settings = peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=RANK,
            lora_alpha=FACTOR,
            lora_dropout=DROPOUT,
            target_modules=["c_attn"],
            fan_in_fan_out=True,
        )
        return peft.get_peft_model(base, settings)

    def _fresh(self) -> Any:
        transformers = _need("transformers")
        config = transformers.GPT2Config(
            n_embd=self.width, n_layer=self.layers or self.depth, n_head=self.heads
        )
        return transformers.GPT2LMHeadModel(config)

    def _finished(self) -> Any:
        """Weights from a folder or the hub, safetensors only: a pickle would be executed."""
        model = _need("transformers").GPT2LMHeadModel
        here = Path(self.weights).is_dir()
        try:
            found = model.from_pretrained(self.weights, use_safetensors=True, local_files_only=here)
        except OSError as error:
            first = str(error).strip().splitlines()[0][:200]
            raise MissingDataError(
                f"no weights of {self.title} in {self.weights!r}: give a folder with config.json"
                f" and model.safetensors, or a name on the hub such as {self.name!r} ({first})"
            ) from None
        except (SafetensorError, RuntimeError, ValueError, KeyError) as error:
            raise MalformedError(f"{self.weights}: {str(error)[:200]}") from None
        config = found.config
        if (config.n_embd, config.n_layer) != (self.width, self.depth):
            raise ParameterError(
                f"{self.weights!r} is {config.n_embd} wide with {config.n_layer} blocks;"
                f" {self.title} has {self.width} and {self.depth}"
            )
        return found


def _need(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise MissingExtraError(f"GPT-2 with LoRA needs {module}: {_INSTALL}") from None
