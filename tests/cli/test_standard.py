"""`neuralmark attack suite --standard`: three parts, a record, a page, and named errors."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import save_file

from neuralmark import Key
from neuralmark.attacks import StandardReport
from neuralmark.reports.standard import standard_page
from tests.support import triggered
from tests.support.commands import call
from tests.support.paths import RELEASE

QUICK = ("--standard", "--only", "noise", "--jobs", "1")


def test_the_three_parts_are_printed(marked: Path, key: Path, model: Path) -> None:
    told = call("attack", "suite", marked, "--key", key, *QUICK, "--original", model)
    assert (told.code, told.err) == (0, "")
    heads = ("Evaluation after MPAI-NNW V1.0 (IEEE 3304-2023)", "1. Imperceptibility")
    at = [told.out.index(head) for head in (*heads, "2. Robustness", "3. Computational cost")]
    assert at == sorted(at)
    assert re.search(r"payload: +160 bits", told.out)
    assert re.search(r"\n +change: +\d+\.\d\d % of the marked weights' norm", told.out)
    assert re.search(r"missed: +[01] of 6 modified marked networks", told.out)
    assert re.search(r"false alarms: +0 of 6 modified unmarked networks", told.out)
    assert re.search(r"\nGaussian noise addition +0\.05 +yes +160 +0\.000 ", told.out)
    assert re.search(r"detection, decoding: [\d.]+ s, .*[\d.]+ times the SHA-256", told.out)
    assert "no range is confirmed" in told.out
    assert "not made" not in told.out.lower()


def test_without_the_original_the_report_says_what_to_give(marked: Path, key: Path) -> None:
    told = call("attack", "suite", marked, "--key", key, *QUICK).out
    assert told.count("give the unmarked original (--original FILE)") == 2
    assert "original=" not in told


def test_the_record_is_kept_and_drawn_again(
    marked: Path, key: Path, model: Path, tmp_path: Path
) -> None:
    page, record = tmp_path / "then.html", tmp_path / "standard.json"
    words = ("attack", "suite", marked, "--key", key, *QUICK, "--only", "finetune")
    told = call(*words, "--original", model, "--report", page, "--json")
    assert told.code == 0
    record.write_text(told.out)
    report = StandardReport.load(record)
    assert report.to_dict() == json.loads(told.out)
    assert [each.name for each in report.modifications if each.why] == ["fine-tuning"]
    again = call("report", record, "-o", tmp_path / "now.html")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("Page of a standard report\n")
    text = page.read_text()
    assert (tmp_path / "now.html").read_text() == text == standard_page(report)
    for words_ in ("2. Robustness", "What was not made, and why", "needs a live module and data"):
        assert words_ in text


def test_false_alarms_and_losses_are_shown() -> None:
    data = json.loads((RELEASE / "standard.json").read_text())
    told = data["robustness"]
    point = told["modifications"][0]["points"][0]
    point |= {"detected": False, "false_alarm": True, "matched_unmarked": 250, "matched": None}
    point["error_rate"] = None
    rates = [p["error_rate"] for each in told["modifications"] for p in each["points"]]
    known = [rate for rate in rates if rate is not None]
    told |= {"missed": 1, "unmarked": 1, "false_alarms": 1, "error_rate": sum(known) / len(known)}
    report = StandardReport.from_dict(data)
    page = standard_page(report)
    assert "250, false alarm" in page
    assert "<strong>missed</strong>" in page
    assert "False alarms: 1 of 1 unmarked networks." in page
    assert '<header class="banner c1">' in page


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (("--original", "MODEL"), "UsageError", "--original is only used with --standard"),
        ((*QUICK, "--other", "MODEL"), "UsageError", "--other is not used with --standard"),
        ((*QUICK, "--original", "MARKED"), "DataMismatchError", "(--original FILE)"),
        (("--standard", "--only", "shift"), "AttackError", "choose among noise, prune"),
        (("--standard", "--only", "distill"), "MissingDataError", "neuralmark.attacks.standard"),
        ((*QUICK, "--report", "MODEL", "--original", "MODEL"), "OutputError", "of the inputs"),
    ],
)
def test_bad_requests(
    marked: Path, key: Path, model: Path, words: tuple[str, ...], error: str, said: str
) -> None:
    given = [{"MODEL": model, "MARKED": marked}.get(word, word) for word in words]
    before = model.read_bytes()
    assert said in call("attack", "suite", marked, "--key", key, *given).failed(2, error)
    assert model.read_bytes() == before


def test_schemes_that_read_activations_take_code_and_triggers(tmp_path: Path) -> None:
    own = triggered.marked("deepsigns")
    names = ("model.safetensors", "own.nmkey", "own.triggers", "claim.json", "net.py")
    model, key, triggers, claim, code = (tmp_path / name for name in names)
    save_file(own.state, model)
    own.key.save(key, None)
    own.triggers.save(triggers, Key.load(key))
    own.claim.save(claim)
    code.write_text("from tests.support.triggered import perceptron\n")
    words = ("attack", "suite", model, "--key", key, "--claim", claim, *QUICK)
    assert "--code" in call(*words).failed(2, "LiveModelError")
    told = call(*words, "--code", f"{code}:perceptron", "--triggers", triggers)
    assert (told.code, told.err) == (0, "")
    assert re.search(r"\nGaussian noise addition +0\.05 +yes +160 ", told.out)
    assert "(deepsigns)" in told.out
