"""The laboratory does what the paper did: lengths, figures, seeds, keys, crops and flips."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuralmark import zoo
from neuralmark.attacks import Data
from neuralmark.attacks.contract import Scene
from neuralmark.attacks.engine.training import AttackCourse, fit
from neuralmark.lab import experiments
from neuralmark.lab.contract import Results
from neuralmark.lab.execution.store import Store
from neuralmark.lab.execution.work import Workbench, perform
from neuralmark.lab.plan.keys import key_for
from neuralmark.lab.plan.preset import Preset, load_preset
from neuralmark.lab.plan.spec import Assault, MarkingSpec, Spec, Training, identity, settings

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def smoke() -> Preset:
    """The smallest preset, with two seeds."""
    preset = load_preset("smoke")
    return replace(preset, training=replace(preset.training, seeds=(0, 1)))


def assaults(name: str, attack: str) -> list[Assault]:
    runs = experiments.get(name).runs(load_preset("paper"))
    return [run for run in runs if isinstance(run, Assault) and run.attack == attack]


def test_fine_tuning_lasts_as_long_as_training() -> None:
    paper = load_preset("paper")
    for name in ("finetune-marked", "finetune-all", "rounds"):
        found = assaults(name, "finetune")
        assert found
        assert {dict(run.settings)["epochs"] for run in found} == {paper.training.epochs}
    lasts = {dict(run.settings)["epochs"] for run in assaults("overwrite-lambda", "overwrite")}
    assert lasts == {100}


def test_figures_have_the_papers_numbers() -> None:
    wanted = {
        "pruning": "figure 2",
        "distribution": "figure 3a",
        "convergence": "figure 3b",
        "overlap": "figure 4",
    }
    for name, figure in wanted.items():
        assert experiments.get(name).paper.split(",")[0] == figure


def test_attackers_crop_and_flip_as_owners_do() -> None:
    data = replace(zoo.data("digits", limit=64, test_limit=16), padding=2, flip=True)
    seen: list[Any] = []

    class Watching(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(data.as_data().inputs[0].numel(), data.classes)

        def forward(self, x: Any) -> Any:
            seen.append(x.detach().clone())
            return self.head(x.flatten(1))

    given = data.as_data()
    plain = Data(given.inputs, given.labels, given.test_inputs, given.test_labels)
    for chosen in (given, plain, given):
        scene = Scene({}, (), np.random.default_rng(3), data=chosen)
        model = Watching()
        fit(model, chosen, AttackCourse(epochs=1, batch=64), model.parameters(), scene)
    varied, still, again = seen
    assert not torch.equal(varied, still)
    assert torch.equal(varied, again)
    known = {row.numpy().tobytes() for row in given.inputs}
    assert all(row.numpy().tobytes() in known for row in still)


def row_of(spec: Spec, number: int) -> dict[str, Any]:
    history = [{"accuracy": 0.1 * number + 0.1 * epoch} for epoch in (1, 2)]
    counted = {"counts": [number, 2, number], "deviation": 0.01 * (1 + number), "mean": 0.0}
    return {
        **{"run": identity(spec), "history": history, "distribution": counted, "moved": 0.5},
        **{"accuracy": 0.5 + 0.1 * number, "rate": 1.0},
    }


@pytest.mark.parametrize("name", ["distribution", "convergence"])
def test_distributions_and_curves_are_of_all_seeds(name: str, smoke: Preset) -> None:
    experiment = experiments.get(name)
    runs = experiment.runs(smoke)
    assert {run.seed for run in runs} == {0, 1}
    results = Results([row_of(run, run.seed) for run in runs])
    [table] = experiment.tables(smoke, results)
    assert any("±" in str(cell) for row in table.rows for cell in row)
    first = experiment.figures(smoke, results)[0].lines[0].points
    assert experiment.figures(smoke, results)[0].lines
    if name == "convergence":
        assert [y for _, y in first] == pytest.approx([15.0, 25.0])  # between the two seeds


def test_models_tested_at_the_end_only_have_no_curve(smoke: Preset) -> None:
    experiment = experiments.get("convergence")
    rows = [row_of(run, 0) for run in experiment.runs(smoke)]
    for row in rows:
        del row["history"][0]["accuracy"]
    [table] = experiment.tables(smoke, Results(rows))
    assert not table.rows
    assert not any(figure.lines for figure in experiment.figures(smoke, Results(rows)))


def test_appendix_g_has_its_figure_and_names_its_rows(smoke: Preset) -> None:
    experiment = experiments.get("rounds")
    runs = experiment.runs(smoke)
    results = Results([row_of(run, 0) for run in runs])
    figures = experiment.figures(smoke, results)
    sets = smoke.training.datasets[:2]
    assert [figure.title for figure in figures[::2]] == [
        f"Random pruning by rounds, {data}" for data in sets
    ]
    for figure in figures:
        assert [line.label for line in figure.lines] == [f"R={r}" for r in smoke.sweeps.rounds]
    tables = experiment.tables(smoke, results)
    trained = [table for table in tables if table.title.startswith("Attacks by rounds")]
    names = [str(row[0]) for table in trained for row in table.rows]
    assert names
    assert not any("prune" in name or "pruning" in name for name in names)
    assert all("η=" in name for name in names)
    pruned = [table for table in tables if table.title.startswith("Random pruning")]
    assert len(pruned) == len(sets)
    shown = {identity(spec) for table in tables for spec in table.specs}
    assert {identity(run) for run in runs if isinstance(run, Assault)} <= shown


def test_an_owner_has_one_key_for_each_seed_and_data_set() -> None:
    def key(**changes: Any) -> str:
        spec = Training("smallcnn", "cifar10", 1, 0.1, 64, mark=MarkingSpec())
        return key_for(replace(spec, **changes), lambda key: key.fingerprint)

    assert key() == key(epochs=2)
    assert len({key(), key(seed=1), key(data="cifar100"), key(mark=MarkingSpec(number=1))}) == 4


def test_owners_and_attackers_train_channels_last(tmp_path: Path) -> None:
    seen: list[bool] = []

    def look(module: Any, _inputs: Any) -> None:
        if isinstance(module, torch.nn.Conv2d) and module.training and module.in_channels > 1:
            seen.append(module.weight.is_contiguous(memory_format=torch.channels_last))

    mark = MarkingSpec(bits=160, pools=320, rounds=1)
    owner = Training("digits", "digits", 1, 0.05, 64, mark=mark, images=128, test_images=32)
    course = settings(epochs=1, rate=0.01, batch=64)
    attacker = Assault(owner, "finetune", course, images=128)
    bench = Workbench(Store(tmp_path))
    hook = torch.nn.modules.module.register_module_forward_pre_hook(look)
    try:
        for spec in (owner, attacker):
            perform(bench, spec, lambda done, total: None)
            assert seen
            assert all(seen), spec.kind
            seen.clear()
    finally:
        hook.remove()


def test_cost_tells_seconds_of_an_epoch(smoke: Preset) -> None:
    experiment = experiments.get("cost")
    [table] = experiment.tables(smoke, Results([]))
    assert any("seconds of an epoch" in head for head in table.head)
    measured = {"ratio": 1.1, "low": 1.0, "high": 1.2, "marked": 0.011, "clean": 0.01}
    rows = [{"run": identity(run), **measured} for run in experiment.runs(smoke)]
    [table] = experiment.tables(smoke, Results(rows))
    steps = -(-50_000 // smoke.training.batch)
    cell = table.rows[0][-1]
    assert not isinstance(cell, str)
    assert cell.ours == f"{steps * 0.011:.1f} and {steps * 0.01:.1f}"
    assert cell.paper == "24.49 and 23.60"


def test_no_file_names_a_developers_machine() -> None:
    """Of whatever kind the file is: rows of results, pages and notebooks too."""
    folders = ("src", "benchmarks", "docs", "examples", "notebooks", "tests", ".github", ".ci")
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    files = [path for path in (*inside, *ROOT.glob("[A-Za-z]*")) if path.is_file()]
    files = [path for path in files if path.suffix != ".pyc"]
    assert {".py", ".md", ".jsonl", ".html", ".ipynb", ".json"} <= {path.suffix for path in files}
    places = [f"/{name}/" for name in ("work", "home", "root", "Users")] + ["shared" + "/data"]
    for path in set(files) - {Path(__file__)}:
        content = path.read_bytes()
        for place in places:
            assert place.encode() not in content, (path, place)


def test_the_benchmarks_do_not_repeat_the_laboratory() -> None:
    assert not (ROOT / "benchmarks" / "comparison.py").exists()
