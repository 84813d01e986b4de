"""Presets: at what scale experiments run, as data (TOML)."""

import difflib
import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from neuralmark.errors import ParameterError
from neuralmark.lab.spec import Settings, Spec


@dataclass(frozen=True)
class TrainingScale:
    """What is trained, and for how long."""

    architectures: tuple[str, ...]
    main: str
    datasets: tuple[str, ...]
    directions: tuple[tuple[str, str], ...]
    zoo: tuple[str, ...]
    epochs: int
    rate: float
    batch: int
    seeds: tuple[int, ...]
    strength: float
    greedy_strength: float
    drops: tuple[int, ...] = ()
    """Epochs after which the learning rate falls to a tenth."""
    images: int | None = None
    test_images: int | None = None
    options: Settings = ()


@dataclass(frozen=True)
class AttackScale:
    """How long attackers train."""

    epochs: int
    rate: float
    batch: int
    images: int | None = None


@dataclass(frozen=True)
class Sweeps:
    """The points of every sweep."""

    weights: tuple[float, ...]
    rates: tuple[float, ...]
    finetune_rates: tuple[float, ...]
    pruned: tuple[float, ...]
    lengths: tuple[int, ...]
    rounds: tuple[int, ...]
    overlap_rounds: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True)
class TextScale:
    """Which language models are tuned on E2E, and for how long."""

    models: tuple[str, ...] = ()
    epochs: int = 5
    rate: float = 2e-4
    batch: int = 8
    warm_up: int = 500
    strength: float = 1.0
    rows: int | None = None
    meanings: int | None = None
    beams: int = 10
    base_epochs: int = 0
    """Epochs on the development rows from fresh weights first; 0: weights from folder or hub."""
    base_rate: float = 2e-3
    base_batch: int = 16


@dataclass(frozen=True)
class Preset:
    """A scale, by name."""

    name: str
    about: str
    training: TrainingScale
    attack: AttackScale
    sweeps: Sweeps
    text: TextScale = field(default=TextScale())
    seconds: Settings = field(default=())
    """What a run takes, by its attack or kind (`other` for the rest): measured, for `lab list`."""
    key: Settings = field(default=())
    """Bits, pools and rounds of the keys, where the scale asks for smaller ones."""


def core_seconds(preset: Preset, specs: Iterable[Spec]) -> float | None:
    """What these runs take on one core, as far as the preset tells; None where it does not."""
    table = {name: float(value) for name, value in preset.seconds}
    if not table:
        return None
    rest = table.get("other", 0.0)
    return sum(table.get(getattr(spec, "attack", spec.kind), rest) for spec in specs)


def preset_names() -> list[str]:
    """The presets that come with the library."""
    folder = package_files("neuralmark.lab") / "presets"
    return sorted(each.name[:-5] for each in folder.iterdir() if each.name.endswith(".toml"))


def load_preset(name: str) -> Preset:
    """A preset by name, or from a TOML file."""
    if name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise ParameterError(f"the preset {name} cannot be read ({error.strerror})") from None
    elif name in preset_names():
        resource = package_files("neuralmark.lab") / "presets" / f"{name}.toml"
        text = resource.read_text(encoding="utf-8")
    else:
        near = difflib.get_close_matches(name, preset_names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(preset_names())}"
        raise ParameterError(f"there is no preset {name!r}; {hint} (or give a .toml file)")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ParameterError(f"the preset {name} is not valid TOML: {error}") from None
    return parse(Path(name).stem, data)


def parse(name: str, data: dict[str, Any]) -> Preset:
    """A preset from parsed TOML; an unknown key is an error with the nearest suggestion."""
    _check(name, "", data, {"about", "training", "attack", "sweeps", "text", "seconds", "key"})
    parts = {}
    for part, cls in (("training", TrainingScale), ("attack", AttackScale), ("sweeps", Sweeps)):
        given = data.get(part)
        if not isinstance(given, dict):
            raise ParameterError(f"the preset {name} has no table [{part}]")
        parts[part] = _table(name, part, given, cls)
    parts["text"] = _table(name, "text", data.get("text", {}), TextScale)
    key, seconds = _frozen(data.get("key", {})), _frozen(data.get("seconds", {}))
    return Preset(name, str(data.get("about", "")), key=key, seconds=seconds, **parts)


def _table(name: str, part: str, given: dict[str, Any], cls: type[Any]) -> Any:
    known = {each.name for each in fields(cls)}
    _check(name, part, given, known)
    needed = {each.name for each in fields(cls) if each.default is MISSING}
    if missing := sorted(needed - set(given)):
        raise ParameterError(f"the preset {name} lacks {missing[0]!r} in [{part}]")
    return cls(**{key: _frozen(value) for key, value in given.items()})


def _check(name: str, part: str, given: dict[str, Any], known: set[str]) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            where = f" in [{part}]" if part else ""
            raise ParameterError(f"the preset {name} has an unknown key {key!r}{where}{hint}")


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
