"""PEFT adapters: adapter_config.json beside adapter_model.safetensors (or .bin).

With the base that it was trained on, an adapter reads as the model that it makes of it: merged on
the fly, in blocks of rows. The base is given, or lies beside the adapter under the last part of the
name that its configuration tells. Without a base, the adapter's own tensors are read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from neuralmark.checkpoints.contract import Checkpoint, StoredTensor, TensorInfo
from neuralmark.checkpoints.readers.blocks import Kept
from neuralmark.checkpoints.readers.dtypes import FLOATS
from neuralmark.checkpoints.readers.lora import (
    Factors,
    LoraConfig,
    MergedBlocks,
    base_name,
    config_of,
)
from neuralmark.core.names import canonical_name
from neuralmark.errors import MalformedError, UnreadableError
from neuralmark.storage.places import Place

CONFIG = "adapter_config.json"
PARTS = (CONFIG,)
FILES = ("adapter_model.safetensors", "adapter_model.bin")
FIXED = (
    "an adapter is merged into its base as it is read: merge them (merge_and_unload in PEFT), save"
    " that, and mark it"
)
_OTHER_MODELS = ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json")
_PART = re.compile(
    r"(?P<stem>.+)\.(?P<word>lora_A|lora_B|lora_embedding_A|lora_embedding_B"
    r"|lora_magnitude_vector)(?:\.default)?(?P<end>\.weight|\.bias)?"
)
_ROWS = re.compile(r"(?P<stem>.+?)(?:\.token_adapter)?\.trainable_tokens_delta")


def matches(path: Place, head: bytes) -> bool:
    """A folder with the two files of an adapter, and without a model of its own."""
    return is_adapter(path)


def is_adapter(path: Place) -> bool:
    """Whether a folder holds an adapter and nothing else that could be the model."""
    if not path.is_dir() or not (path / CONFIG).is_file():
        return False
    model = any((path / name).is_file() for name in _OTHER_MODELS)
    return not model and any((path / name).is_file() for name in FILES)


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Merged into the base beside it; its own tensors where there is none."""
    from neuralmark.checkpoints import open_file

    told = base_name(path / CONFIG)
    beside = _beside(path, told)
    if beside is not None:
        return merged(path, open_file(beside))
    own = _own(path)
    named = f", {told!r}," if told else ""
    own.wants = (
        f"{path} is an adapter, and the base that it was trained on{named} was not given: give"
        " VerifyOptions(base=...), or put the base's folder beside the adapter's"
    )
    return own


def merged(path: Place, base: Checkpoint) -> Checkpoint:
    """The model that an adapter makes of a base."""
    config = config_of(path / CONFIG)
    table = _Merging(_own(path), base, config).table()
    form = f"adapter of {base.format}"
    return Checkpoint(path, form, table)


def _beside(path: Place, told: str) -> Place | None:
    """The folder beside an adapter that has the name of its base."""
    last = told.rstrip("/").rpartition("/")[2]
    if not last or last in (".", "..") or "\\" in last or last == path.name:
        return None
    place = path.parent / last
    return place if place.is_dir() and not is_adapter(place) else None


def _own(path: Place) -> Checkpoint:
    from neuralmark.checkpoints import open_file

    name = next(name for name in FILES if (path / name).is_file())
    return open_file(path / name)


@dataclass(frozen=True)
class _Merging:
    """An adapter, the base and what the configuration says."""

    adapter: Checkpoint
    base: Checkpoint
    config: LoraConfig

    def table(self) -> dict[str, StoredTensor]:
        """The base's tensors: merged, replaced by the adapter's own, or as they are."""
        kept = Kept()
        parts, plain = self._sorted()
        known = {canonical_name(name): name for name in self.base.names()}
        prefix = self._prefix([*parts, *plain], known)
        table = {name: _still(self.base.span(name)) for name in self.base.names()}
        for name in self.base.names():
            if not self.base.in_order(name) and self.base.span(name).layout is None:
                raise UnreadableError(
                    f"{self.base.path}: is compressed: save it uncompressed first"
                )
        for changed, tensors in parts.items():
            name = self._found(changed, prefix, known)
            table[name] = self._merged(name, changed, tensors, kept)
        for changed, own in plain.items():
            rows = _ROWS.fullmatch(changed)
            name = known.get(prefix(changed), prefix(changed))
            if rows is not None:
                name = self._found(f"{rows['stem']}.weight", prefix, known)
                table[name] = _blocked(table[name], "the adapter replaces some of its rows")
                continue
            if name in table and self.base.info(name).shape != self.adapter.info(own).shape:
                raise self._misfit(changed)
            stored = self.adapter.span(own)
            table[name] = _still(replace(stored, info=replace(stored.info, name=name)))
        return table

    def _sorted(self) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        """Factors by the tensor that they change, and tensors that take the place of the base's."""
        parts: dict[str, dict[str, str]] = {}
        plain: dict[str, str] = {}
        for stored in self.adapter.names():
            name = canonical_name(stored)
            match = _PART.fullmatch(name)
            if match is None:
                plain[name] = stored
            elif match["end"] == ".bias":
                raise UnreadableError(
                    f"{self.adapter.path}: biases of adapters are not merged here: merge it with"
                    " PEFT (merge_and_unload), save that, and give it"
                )
            else:
                parts.setdefault(f"{match['stem']}.weight", {})[match["word"]] = stored
        return parts, plain

    def _prefix(self, targets: list[str], known: Mapping[str, str]) -> "_Renamed":
        """What the base's names have before the adapter's, or lack: the same for all of them."""
        wanted = [changed for changed in targets if not _ROWS.fullmatch(changed)]
        candidates = [_Renamed()]
        first = next(iter(wanted), "")
        candidates += [
            _Renamed(add=n.removesuffix(first)) for n in known if n.endswith(f".{first}")
        ]
        heads = {changed.split(".")[0] for changed in wanted}
        candidates += [_Renamed(drop=f"{head}.") for head in heads if len(heads) == 1]
        for each in candidates[:64]:
            if all(each(changed) in known for changed in wanted):
                return each
        return candidates[0]

    def _found(self, changed: str, prefix: "_Renamed", known: Mapping[str, str]) -> str:
        name = known.get(prefix(changed))
        if name is None:
            raise self._misfit(changed)
        return name

    def _misfit(self, changed: str) -> MalformedError:
        named = f" ({self.config.base})" if self.config.base else ""
        return MalformedError(
            f"{self.adapter.path}: changes {changed[:80]!r}, which {self.base.path} does not have"
            f" in this shape: give the base that the adapter was trained on{named}"
        )

    def _merged(self, name: str, changed: str, tensors: dict[str, str], kept: Kept) -> StoredTensor:
        info, span = self.base.info(name), self.base.span(name)
        factors = self._factors(changed, info, tensors)
        form = "DoRA" if factors.magnitude else "LoRA"
        shown = TensorInfo(name, "F32", info.shape, info.obstacle, fixed=FIXED)
        if info.obstacle is None and info.dtype not in FLOATS:
            shown = replace(shown, obstacle=f"its base has the dtype {info.dtype}")
        shown = replace(shown, stored=f"{info.stored or info.dtype} with {form}")
        decoder = MergedBlocks(self.base, name, factors, kept)
        also = (*span.also, self.adapter.span(factors.down).file)
        return StoredTensor(shown, span.file, span.offset, decoder=decoder, also=also)

    def _factors(self, changed: str, info: TensorInfo, tensors: dict[str, str]) -> Factors:
        inner = "embedding_" if "lora_embedding_A" in tensors else ""
        down, up = tensors.get(f"lora_{inner}A"), tensors.get(f"lora_{inner}B")
        if down is None or up is None:
            raise MalformedError(f"{self.adapter.path}: has one half of {changed[:80]!r} only")
        for name in tensors.values():
            if self.adapter.info(name).dtype not in FLOATS or not self.adapter.info(name).size:
                raise MalformedError(f"{self.adapter.path}: {name[:80]!r} holds no numbers")
        a, b = self.adapter.info(down).shape, self.adapter.info(up).shape
        fits = _fits(a, b, info.shape)
        if not fits:
            raise self._misfit(changed)
        turned = not fits[0] or (fits[1] and (bool(inner) or self.config.turned))
        magnitude = tensors.get("lora_magnitude_vector")
        if magnitude is not None:
            self._check_magnitude(magnitude, b[0], bool(inner))
        scale = self.config.scale(changed.removesuffix(".weight"), a[0])
        return Factors(self.adapter, down, up, scale, turned, magnitude)

    def _check_magnitude(self, name: str, outputs: int, embedding: bool) -> None:
        if embedding:
            raise UnreadableError(
                f"{self.adapter.path}: DoRA on embeddings is not merged here: merge it with PEFT"
                " (merge_and_unload), save that, and give it"
            )
        if self.adapter.info(name).size != outputs:
            raise MalformedError(f"{self.adapter.path}: {name[:80]!r} fits no {outputs:,} outputs")


@dataclass(frozen=True)
class _Renamed:
    """A tensor of the adapter under the base's name."""

    add: str = ""
    drop: str = ""

    def __call__(self, name: str) -> str:
        return self.add + name.removeprefix(self.drop)


def _fits(a: tuple[int, ...], b: tuple[int, ...], of: tuple[int, ...]) -> tuple[bool, bool] | None:
    """Whether B·A has this shape, and whether its transpose has; None where neither does."""
    if len(a) != len(b) or len(a) < 2 or a[0] != b[1] or any(each != 1 for each in b[2:]):
        return None
    found = (b[0], *a[1:]) == of, len(of) == 2 and (a[1], b[0]) == of
    return found if any(found) else None


def _blocked(stored: StoredTensor, why: str) -> StoredTensor:
    return replace(stored, info=replace(stored.info, obstacle=why))


def _still(stored: StoredTensor) -> StoredTensor:
    return replace(stored, info=replace(stored.info, fixed=FIXED))
