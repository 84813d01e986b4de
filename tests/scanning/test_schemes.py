"""A key of any scheme finds in a scan what it finds alone, and takes no other's marks away."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from neuralmark import EmbedOptions, Key, ScanOptions, Verdict, VerifyOptions, embed, scan, schemes
from neuralmark import verify as verified
from neuralmark.core.carriers import Tiled
from neuralmark.core.key import Filter
from neuralmark.core.readout import Known
from neuralmark.errors import AnchorError, MalformedError
from neuralmark.scanning import planning, screening, work
from neuralmark.scanning.contract import HEADERS, WEIGHTS, ScanRow, ScanTerms, Todo
from neuralmark.scanning.keyring import AnyKeys, keyring_of
from tests.support.models import QUICK, gaussian, saved
from tests.support.scans import keys_of, mark, models_in
from tests.support.schemes import MARKING, key_of, parameters

WRITTEN = [name for name in MARKING if schemes.get(name).writes]
"""Those that can be written into files."""

CASES = [
    (name, how)
    for name in WRITTEN
    for how in schemes.get(name).filters
    if how == schemes.get(name).filters[0] or schemes.get(name).filters[0] == "none"
]

OWNER = Key(QUICK, b"owner=B", salt=bytes(32), secret=bytes([9]) * 32)
"""Of the usual scheme, beside each of the others."""


def network_in(file: Path) -> Path:
    """Two convolutions and a linear layer, not marked; passports have room in the second."""
    shapes = {"0.weight": (48, 3, 3, 3), "3.weight": (192, 48, 3, 3), "7.weight": (10, 192)}
    file.parent.mkdir(parents=True, exist_ok=True)
    return saved(file, **{name: gaussian(*shape) for name, shape in shapes.items()})


@pytest.mark.parametrize(("name", "how"), CASES)
def test_every_scheme_is_found_and_hides_nobody(name: str, how: Filter, tmp_path: Path) -> None:
    """Searched for, with a claim, with its anchor, with a claim and an anchor beside the model."""
    one, two, three, four = (key_of(parameters(name, how), number) for number in (1, 2, 3, 4))
    models, claims = tmp_path / "models", tmp_path / "claims"
    plain, anchored = EmbedOptions(anchor=False, strength=2.0), EmbedOptions(strength=2.0)
    free = mark(network_in(models / "free.safetensors"), one, None, plain)
    near = mark(network_in(models / "claimed.safetensors"), two, claims, plain)
    bound = mark(network_in(models / "anchored.safetensors"), three, claims, anchored)
    beside = models / "beside.safetensors"
    embed(network_in(tmp_path / "plain.safetensors"), four, beside, anchored)
    own = mark(network_in(models / "own.safetensors"), OWNER, None, plain)
    files: dict[str, tuple[Key, Path | None]] = {
        str(free): (one, None),
        str(near): (two, claims / f"{near.name}.claim.json"),
        str(bound): (three, claims / f"{bound.name}.claim.json"),
        str(beside): (four, None),
        str(own): (OWNER, None),
    }
    options = ScanOptions(jobs=1, align="never")
    keys = [key for key, _ in files.values()]
    result = scan([models], keys, tmp_path / "out", claims=claims, options=options)
    rows = {row.target: row for row in result.rows()}
    assert result.counts == {"verified": len(files)}, [row.why for row in rows.values()]
    for target, (key, claim) in files.items():
        alone = verified(target, key, claim=claim, options=VerifyOptions(among=len(files) ** 2))
        found = Verdict.from_dict(rows[target].verdict or {})
        assert replace(alone, date=found.date) == found


class Broken(RuntimeError):
    """What no scheme raises."""


def breaks(*args: object, **more: object) -> NoReturn:
    raise Broken("this scheme is broken")


def worked(stage: Any, models: list[Path], keys: AnyKeys, claims: Path | None = None) -> list[Any]:
    """What a worker makes of models, in this process: its rows, or what it says instead."""
    work.prepare(keyring_of(keys, claims))
    todo = [Todo(number, str(model)) for number, model in enumerate(models)]
    found = work.carry_out(stage, todo, ScanTerms(10))
    return [
        [ScanRow.from_dict(row) for row in each["rows"]] if "rows" in each else each
        for each in sorted(found, key=lambda each: int(each["number"]))
    ]


def told(rows: list[ScanRow]) -> list[tuple[object, ...]]:
    return [(row.status, row.key_name, row.error) for row in rows]


def pair(folder: Path) -> tuple[dict[str, Key], list[Path]]:
    """A key of DeepIPR and a usual one; two models, the second marked with the usual one."""
    keys = {"bad.nmkey": Key.new(schemes.parameters("deepipr", bits=96)), **keys_of("good")}
    models = models_in(folder, 2)
    return keys, [models[0], mark(models[1], keys["good.nmkey"])]


LOST = ("error", "bad.nmkey", "Broken")
FOUND = ("verified", "good.nmkey", None)


@pytest.mark.parametrize("held", [planning.HELD, 1])
@pytest.mark.parametrize("what", ["derive", "carriers", "logits"])
def test_a_look_that_fails_is_a_row_of_its_key_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, held: int
) -> None:
    """Held in memory, and streamed."""
    keys, models = pair(tmp_path)
    monkeypatch.setattr(type(schemes.get("deepipr")), what, breaks)
    monkeypatch.setattr(screening, "HELD", held)
    each = [[model] for model in models] if held == 1 else [models]
    plain, marked = (rows for some in each for rows in worked(WEIGHTS, some, keys))
    assert told(plain) == [("nothing", None, None), LOST]
    assert told(marked) == [FOUND, LOST]
    assert plain[0].why.startswith("1 of 2 marks looked for in ")
    assert plain[1].why == "bad.nmkey: this scheme is broken"
    assert plain[1].key == keys["bad.nmkey"].fingerprint
    alone = {"bad.nmkey": keys["bad.nmkey"]}
    assert told(worked(WEIGHTS, models[:1], alone)[0]) == [LOST]


def test_carriers_that_fail_while_a_model_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, models = pair(tmp_path)
    monkeypatch.setattr(Tiled, "between", breaks)  # the usual scheme has others
    monkeypatch.setattr(screening, "HELD", 1)
    assert told(worked(WEIGHTS, models[1:], keys)[0]) == [FOUND, LOST]


def test_a_look_that_fails_at_one_model_is_made_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, models = pair(tmp_path)
    usual = type(schemes.get("deepipr")).logits

    def picky(self: Any, known: Known, pooled: Any) -> Any:
        return breaks() if np.ptp(pooled) == 0 else usual(self, known, pooled)

    monkeypatch.setattr(type(schemes.get("deepipr")), "logits", picky)
    flat = {"layer1.weight": np.ones((128, 128), "f4"), "layer1.bias": np.ones(128, "f4")}
    flat["layer2.weight"] = np.ones((96, 128), "f4")
    models.append(saved(tmp_path / "flat.safetensors", **flat))
    rows = worked(WEIGHTS, models, keys)
    assert [told(each) for each in rows] == [
        [("nothing", None, None)],
        [FOUND],
        [("nothing", None, None), LOST],
    ]


def test_a_plan_that_fails_is_a_row_of_its_key_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, models = pair(tmp_path)
    monkeypatch.setattr(type(schemes.get("deepipr")), "room", breaks)
    (head,) = worked(HEADERS, models[:1], keys)
    assert "signature" in head
    assert [told(rows) for rows in worked(WEIGHTS, models, keys)] == [
        [("nothing", None, None), LOST],
        [FOUND, LOST],
    ]
    tiny = saved(tmp_path / "tiny.safetensors", **{"w.weight": gaussian(9, 9)})
    (rows,) = worked(HEADERS, [tiny], keys)
    assert told(rows) == [("nothing", None, None), LOST]
    (rows,) = worked(HEADERS, [tiny], {"bad.nmkey": keys["bad.nmkey"]})
    assert told(rows) == [LOST]


def test_a_verdict_that_fails_is_a_row_of_its_key_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model cannot be read, the row is the model's, once, whatever was looked for."""
    keys = keys_of("one", "two")
    (model,) = models_in(tmp_path, 1)
    half = mark(
        model, keys["one.nmkey"], None, EmbedOptions(anchor=False, tensors=["layer1.weight"])
    )
    both = mark(
        half, keys["two.nmkey"], None, EmbedOptions(anchor=False, tensors=["layer2.weight"])
    )
    errors: dict[str, Exception | None] = {"one.nmkey": AnchorError("damaged"), "two.nmkey": None}

    def some(target: Any, key: Key, **more: Any) -> Any:
        name = next(name for name, each in keys.items() if each is key)
        error = errors[name]
        if error is not None:
            raise error
        return verified(target, key, **more)

    monkeypatch.setattr(work, "verify", some)
    lost = ("error", "one.nmkey", "AnchorError")
    assert told(worked(WEIGHTS, [both], keys)[0]) == [("verified", "two.nmkey", None), lost]
    errors["two.nmkey"] = AnchorError("damaged too")
    assert [row.status for row in worked(WEIGHTS, [both], keys)[0]] == ["error", "error"]
    errors.update(dict.fromkeys(errors, MalformedError("cut off")))
    assert told(worked(WEIGHTS, [both], keys)[0]) == [("error", None, "MalformedError")]


def test_memory_that_runs_out_is_no_row_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent gives the models to others, one by one."""

    def starved(*args: object) -> NoReturn:
        raise MemoryError

    keys, models = pair(tmp_path)
    for what in ("room", "derive", "logits"):
        with monkeypatch.context() as patch:
            patch.setattr(type(schemes.get("deepipr")), what, starved)
            with pytest.raises(MemoryError):
                worked(WEIGHTS, models, keys)


def test_tensors_that_a_key_is_too_large_for_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `verify` does: a scheme without a filter has a cap, and large models are above it."""
    monkeypatch.setattr("neuralmark.schemes.vanillamark.MAX_ENTRIES", 100 * 128 * 96)
    key = Key.new(schemes.parameters("vanillamark", bits=96))
    keys = {"bad.nmkey": key, **keys_of("good")}
    model = mark(models_in(tmp_path, 1)[0], keys["good.nmkey"])
    for held in (planning.HELD, 1):
        monkeypatch.setattr(screening, "HELD", held)
        assert told(worked(WEIGHTS, [model], keys)[0]) == [FOUND]
        assert told(worked(WEIGHTS, [model], {"bad.nmkey": key})[0]) == [("nothing", None, None)]
