"""PyTorch's own engines, in two and four real processes: the same mark as in one."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.processes import torchrun

WORKER = Path(__file__).with_name("worker.py")
KEYS_WORKER = WORKER.with_name("keys_worker.py")
ONCE = ("resume", "saving", "replicated", "one_shard", "half", "grids", "lead_fails", "refused")
LAUNCHES = {2: ("ddp", "fsdp2", "tp", *ONCE, "other_keys"), 4: ("fsdp2_tp", "hsdp", "fsdp2")}
ENGINES = [(2, "ddp"), (2, "fsdp2"), (2, "tp"), (4, "fsdp2_tp"), (4, "hsdp"), (4, "fsdp2")]
SHARDED_DIMENSIONS = {"ddp": 0, "fsdp2": 1, "tp": 1, "fsdp2_tp": 2, "hsdp": 1}
MESH_DIMENSIONS = SHARDED_DIMENSIONS | {"ddp": 1, "hsdp": 2}
OTHER_KEY = "another process marks tensors of these names with another key"
NUMBERS = 321  # k = 320 pools, and the sum of squares

Result = dict[str, Any]


class Launches:
    """Each number of processes is started once, whichever test (and xdist worker) asks first."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def results(self, processes: int, scenario: str) -> list[Result]:
        """What every process found."""
        folder = self._base / f"processes-{processes}"
        folder.mkdir(exist_ok=True)
        written, failure = folder / "results.json", folder / "failure.txt"
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not written.exists() and not failure.exists():
                done = torchrun(processes, WORKER, str(folder), *LAUNCHES[processes])
                if done.returncode:
                    failure.write_text(done.stderr, encoding="utf-8")
        if failure.exists():
            pytest.fail(failure.read_text(encoding="utf-8"))
        found: list[Result] = json.loads(written.read_text(encoding="utf-8"))[scenario]
        assert len(found) == processes
        return found


@pytest.fixture(scope="session")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    base = tmp_path_factory.getbasetemp()
    return Launches(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


@pytest.mark.parametrize(("processes", "engine"), ENGINES)
def test_the_term_is_that_of_one_process(launches: Launches, processes: int, engine: str) -> None:
    for found in launches.results(processes, engine):
        term = found["term"]
        assert term["error"] <= 1e-8
        assert term["largest"] > 1e-3
        assert term["others"] == []


@pytest.mark.parametrize(("processes", "engine"), ENGINES)
def test_a_step_sums_k_numbers_and_gathers_nothing(
    launches: Launches, processes: int, engine: str
) -> None:
    dimensions = SHARDED_DIMENSIONS[engine]
    sums = {"c10d.allreduce_": dimensions} if dimensions else {}
    handed_on = {"c10d.broadcast_": 2 * MESH_DIMENSIONS[engine]}  # the change, and that it is done
    for found in launches.results(processes, engine):
        for part in (found["term"], found["gradient"]):
            assert part["collectives"] == sums
            assert part["numbers"] == [NUMBERS] * dimensions
        assert found["projection"]["collectives"] == sums | handed_on
        assert found["projection"]["numbers"] == [NUMBERS] * dimensions


@pytest.mark.parametrize("mode", ["gradient", "projection"])
@pytest.mark.parametrize(("processes", "engine"), ENGINES)
def test_training_gives_the_weights_of_one_process(
    launches: Launches, processes: int, engine: str, mode: str
) -> None:
    for found in launches.results(processes, engine):
        assert found[mode]["error"] < 1e-6
        assert found[mode]["moved"] > 1e-2
        assert found[mode]["replicas"]


@pytest.mark.parametrize(("processes", "engine"), ENGINES)
def test_one_process_alone_can_read_how_far_it_is(
    launches: Launches, processes: int, engine: str
) -> None:
    results = launches.results(processes, engine)
    assert results[0]["term"]["rate_before"]
    for mode in ("gradient", "projection"):
        before, after = results[0][mode]["read_alone"]
        stale = mode == "gradient" and engine != "ddp"  # shards are read as the step begins
        assert results[0][mode]["read"] == pytest.approx(before if stale else after, rel=1e-5)
        for found in results:
            assert found[mode]["measured"] == pytest.approx(after, rel=1e-5)


@pytest.mark.parametrize("mode", ["gradient", "projection"])
@pytest.mark.parametrize(("processes", "engine"), ENGINES)
def test_a_live_verdict_is_that_of_the_file(
    launches: Launches, processes: int, engine: str, mode: str
) -> None:
    results = launches.results(processes, engine)
    files = results[0][mode]["files"]
    assert files[0]["verified"]
    assert files[0]["matched"] == 160
    assert files[1]["verified"] == (mode == "projection")  # `auto` does not name all of the others
    for found in results:
        for live, file in zip(found[mode]["verdicts"], files, strict=True):
            assert_same(live, file)


def assert_same(one: Result, other: Result) -> None:
    exact = ["verified", "matched", "map", "trials", "placement"]
    if not one["verified"]:  # shards cannot be read by rows: the best guess may differ
        exact = ["verified", "trials"]
    assert {name: one[name] for name in exact} == {name: other[name] for name in exact}
    if not one["verified"]:
        return
    assert one["margins"] == pytest.approx(other["margins"], rel=1e-6)
    for name in ("radius", "radius_relative"):
        assert (one[name] is None) == (other[name] is None)
        if one[name] is not None:
            assert one[name] == pytest.approx(other[name], rel=1e-6)


@pytest.mark.parametrize(("processes", "engine"), ENGINES)
def test_a_claim_names_no_digest_of_what_is_not_here(
    launches: Launches, processes: int, engine: str
) -> None:
    here = {"ddp": ["down.weight", "out.weight", "up.weight"], "tp": ["out.weight"]}
    results = launches.results(processes, engine)
    for found in results:
        assert found["gradient"]["digests"] == here.get(engine, [])
    if engine != "ddp":  # whose names begin with "module."
        assert results[0]["gradient"]["headers"]


@pytest.mark.parametrize(("processes", "engine"), ENGINES)
def test_imprinting_gives_the_weights_of_one_process(
    launches: Launches, processes: int, engine: str
) -> None:
    for found in launches.results(processes, engine):
        done = found["imprint"]
        assert done["error"] < 1e-6
        assert done["replicas"]
        assert done["changes"] == pytest.approx(done["changes_alone"], rel=1e-5)
        assert done["verdict"]["verified"]
        assert done["verdict"]["matched"] == done["verdict_alone"]["matched"] == 160


@pytest.mark.parametrize(("processes", "engine"), ENGINES)
def test_a_sharded_training_is_sealed(launches: Launches, processes: int, engine: str) -> None:
    results = [found["seal"] for found in launches.results(processes, engine)]
    assert len({done["anchor"] for done in results}) == 1
    for done in results:
        assert done["file"] == done["anchor"]
        assert (done["matched"], done["saved"]) == (160, 160)
        assert done["trained"] == [True, True]
        assert done["replicas"]


def test_resumed_training_equals_uninterrupted_training(launches: Launches) -> None:
    for found in launches.results(2, "resume"):
        assert found == {"errors": {"True": 0.0, "False": 0.0}, "steps": 8}


def test_reading_an_optimizers_state_is_no_step(launches: Launches) -> None:
    for found in launches.results(2, "saving"):
        assert found == {"gradient": [1, 0.0], "projection": [1, 0.0]}


def test_partial_gradients_are_added_up_first(launches: Launches) -> None:
    for found in launches.results(2, "replicated"):
        assert found["partial"]
        assert found["error"] < 1e-6
        assert all(found["placements"])
        assert found["digests"] == ["down.weight", "out.weight", "up.weight"]


def test_a_mesh_dimension_of_one_process_shards_nothing(launches: Launches) -> None:
    for found in launches.results(2, "one_shard"):
        assert found["digests"] == ["down.weight", "out.weight", "up.weight"]
        agreed = {"c10d.allreduce_": 2}  # on the key and the tensors, and on the settings
        assert found["collectives"] == agreed | {"c10d.broadcast_": 2}


def test_half_precision_is_settled_together(launches: Launches) -> None:
    one, other = launches.results(2, "half")
    assert one == other
    assert one["matched"] == 160
    assert one["margins"][0] > 2 * (1 - 1e-2)


def test_shards_agree_on_the_grid_of_their_tensor(launches: Launches) -> None:
    one, other = launches.results(2, "grids")
    assert one == other
    assert one["short"]["matched"] == 160
    assert one["short"]["on"]


def test_zeros_stay_even_where_a_process_holds_nothing_else(launches: Launches) -> None:
    for found in launches.results(2, "grids"):
        assert found["pruned"]["matched"] == 160
        assert found["pruned"]["zeros"]
        assert found["pruned"]["moved"] == ["down.weight", "up.weight"]
        assert found["pruned"]["warnings"] == []


def test_a_tensor_that_cannot_carry_a_mark_stays_in_all_processes(launches: Launches) -> None:
    for found in launches.results(2, "grids"):
        assert found["still"]["matched"] == 160
        assert found["still"]["moved"] == ["up.weight"]
        (warning,) = found["still"]["warnings"]
        assert warning == "1 of 2 tensors stay as they are (down.weight: all values are zero)"
        wanted = "UnsuitableTensorError: 'down.weight' cannot carry a mark: all values are zero"
        assert found["named"] == wanted


def test_what_is_not_finite_in_one_process_is_an_error_in_all(launches: Launches) -> None:
    for found in launches.results(2, "grids"):
        assert found["broken"].startswith("NonFiniteError: 'up.weight' holds NaN")


def test_what_the_first_cannot_solve_is_an_error_on_all(launches: Launches) -> None:
    first, second = launches.results(2, "lead_fails")
    assert set(first.values()) == {"InfeasibleError: no"}
    assert all(text.startswith("InfeasibleError: the first process") for text in second.values())


def test_what_cannot_work_says_what_to_do(launches: Launches) -> None:
    for found in launches.results(2, "refused"):
        for name in ("fsdp1", "fsdp1_verify"):
            assert found[name].startswith("UnsuitableTensorError: FullyShardedDataParallel")
            assert "fully_shard" in found[name]
        assert "not among the optimizer's parameters" in found["early_optimizer"]
        assert 'mode="gradient"' in found["loss_term"]
        assert found["computed"].startswith("UnsuitableTensorError: 'up.weight' cannot be used")
        assert found["computed_verify"] == "unreadable"


def test_processes_with_different_keys_are_noticed(launches: Launches) -> None:
    for found in launches.results(2, "other_keys"):
        for engine in ("ddp", "fsdp2"):
            assert found[engine].pop("same") == "nothing was raised"
        for calls in found.values():
            for call, text in calls.items():
                what = call if call in ("settings", "tensors") else "key"
                assert text.startswith(f"UsageError: the processes do not agree on the {what}:")


def test_different_keys_are_noticed_in_a_model_that_is_wrapped_later(tmp_path: Path) -> None:
    """Of a plain module nobody knows who shares it: whoever differs from the first is warned."""
    done = torchrun(2, KEYS_WORKER, str(tmp_path))
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    for call in ("loss", "gradient", "projection", "attach"):
        texts = [text for process in told.pop(call) for text in process]
        assert len([text for text in texts if text.startswith(OTHER_KEY)]) == 1
    assert told == {"same": [[], []], "alone": [[], []]}


def test_the_example_runs() -> None:
    done = torchrun(2, ROOT / "examples" / "fsdp2.py")
    assert done.returncode == 0, done.stderr
    assert "256 of 256 bits" in done.stdout
    assert done.stdout.count("\n") == 2, done.stdout
