"""Presets: at what scale experiments run, as data (TOML)."""

import difflib
import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, get_type_hints

from neuralmark.errors import ParameterError
from neuralmark.lab.plan.columns import PUBLISHED, TITLES
from neuralmark.lab.plan.schema import require_fit, require_known, require_several, typed
from neuralmark.lab.plan.spec import Settings, Spec


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
    schemes: tuple[str, ...] = PUBLISHED
    """The marks that are compared: columns of the tables."""
    movements: tuple[float, ...] = ()
    """‖Δw‖/‖w‖ at which all schemes are compared beside their own strength; none: nowhere."""
    too_weak: tuple[str, ...] = ()
    """Marks that their own strength does not bring in at this scale: attacked at equal movement."""
    zoo_data: str = "cifar100"
    """On what the `zoo` is trained."""
    zoo_epochs: int | None = None
    """Epochs, batch, images and seeds of the `zoo`, where they differ from those of the others."""
    zoo_longer: Settings = ()
    """Epochs of those that need more of them, by name."""
    zoo_batch: int | None = None
    zoo_images: int | None = None
    zoo_seeds: tuple[int, ...] = ()
    zoo_margin: float | None = None
    """The margin (σz) of marks that are kept in the zoo by projection; none: by gradient."""


@dataclass(frozen=True)
class AttackScale:
    """How long attackers train."""

    epochs: int
    rate: float
    batch: int
    images: int | None = None
    finetune_epochs: int | None = None
    """Where fine-tuning lasts longer than the other attacks (the paper: as long as training)."""
    limit: int | None = None
    """The most steps of overwriting, which goes on until the attacker's mark is whole."""


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
    reaches: tuple[float, ...] = (4.0, 3.0, 2.0, 1.0)
    """Robust deviations beyond which weights are trimmed."""


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
    """Epochs of a model of our own from fresh weights first; 0: weights from folder or hub."""
    base_rows: int | None = None
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
    """What a run takes, by its attack, probe or kind (`other` for the rest), for `lab list`."""
    key: Settings = field(default=())
    """Bits, pools and rounds of the keys, where the scale asks for smaller ones."""
    experiments: tuple[tuple[str, ...], ...] = ()
    """What `all` means at this scale, in groups, the most important first; none: everything."""


def core_seconds(preset: Preset, specs: Iterable[Spec]) -> float | None:
    """What these runs take on one core (by the clock), if the preset tells; else None."""
    table = {name: float(value) for name, value in preset.seconds}
    if not table:
        return None
    rest = table.get("other", 0.0)
    names = (getattr(spec, "attack", getattr(spec, "probe", spec.kind)) for spec in specs)
    return sum(table.get(name, rest) for name in names)


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
    tables = {"about", "training", "attack", "sweeps", "text", "seconds", "key", "experiments"}
    require_known(name, "", data, tables)
    parts = {}
    for part, cls in (("training", TrainingScale), ("attack", AttackScale), ("sweeps", Sweeps)):
        given = data.get(part)
        if not isinstance(given, dict):
            raise ParameterError(f"the preset {name} has no table [{part}]")
        parts[part] = _table(name, part, given, cls)
    for part, keys in (
        ("training", ("architectures", "datasets", "directions", "seeds")),
        ("sweeps", [each.name for each in fields(Sweeps)]),
    ):
        for key in keys:
            require_several(f"{key} in [{part}] of the preset {name}", getattr(parts[part], key))
    if shares := [share for share in parts["sweeps"].pruned if share >= 1]:
        raise ParameterError(f"pruned in [sweeps] of the preset {name}: not below 1: {shares}")
    parts["text"] = _table(name, "text", data.get("text", {}), TextScale)
    for part, kind in (("key", int), ("seconds", float)):
        require_fit(f"[{part}] of the preset {name}", Settings, data.get(part, {}), least=True)
        for setting, value in data.get(part, {}).items():
            require_fit(f"{setting} in [{part}] of the preset {name}", kind, value, least=True)
    require_known(name, "key", data.get("key", {}), {"bits", "pools", "rounds"})
    _require_columns(name, parts["training"])
    longer = data["training"].get("zoo_longer", {})
    require_known(name, "training.zoo_longer", longer, set(parts["training"].zoo))
    for network, epochs in longer.items():
        where = f"{network} in [training.zoo_longer] of the preset {name}"
        require_fit(where, int, epochs, least=True)
    groups, where = data.get("experiments", []), f"experiments of the preset {name}"
    require_fit(where, tuple[tuple[str, ...], ...], groups, least=True)
    for part in ("key", "seconds", "experiments"):
        parts[part] = _frozen(data.get(part, {}))
    return Preset(name, str(data.get("about", "")), **parts)


def _require_columns(name: str, scale: TrainingScale) -> None:
    """Refuse schemes that tables have no column for."""
    marks = [each for each in TITLES if each != "clean"]
    for scheme in (*scale.schemes, *scale.too_weak):
        if scheme not in marks:
            near = difflib.get_close_matches(scheme, marks, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(marks)}"
            raise ParameterError(f"the preset {name} has an unknown scheme {scheme!r}; {hint}")


FROM_ZERO = ("warm_up", "base_epochs", "meanings", "seeds", "zoo_seeds", "overlap_rounds")
"""Numbers that may be 0; others are positive."""


def _table(name: str, part: str, given: dict[str, Any], cls: type[Any]) -> Any:
    if not isinstance(given, dict):
        raise ParameterError(f"the preset {name} has no table [{part}]")
    known = {each.name for each in fields(cls)}
    require_known(name, part, given, known)
    needed = {each.name for each in fields(cls) if each.default is MISSING}
    if missing := sorted(needed - set(given)):
        raise ParameterError(f"the preset {name} lacks {missing[0]!r} in [{part}]")
    kinds = get_type_hints(cls)
    for key, value in given.items():
        where = f"{key} in [{part}] of the preset {name}"
        require_fit(where, kinds[key], value, least=key not in FROM_ZERO)
    return cls(**{key: typed(kinds[key], _frozen(value)) for key, value in given.items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
