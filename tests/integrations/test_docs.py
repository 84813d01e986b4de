"""The Python in docs/training.md and docs/lora.md runs as it stands."""

import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import peft
import pytest
import torch
import transformers
from accelerate import Accelerator  # type: ignore[import-untyped]
from lightning.pytorch.loggers import CSVLogger

import neuralmark
from neuralmark import Key
from tests.support.fits import Automatic, loader
from tests.support.tiny import Rows, gpt2

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def run(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, "docs", "exec"), names)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def training_names(key: Key) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128)
    )
    loader = [(torch.randn(8, 16), torch.randint(128, (8,))) for _ in range(8)]
    return {
        "torch": torch,
        "neuralmark": neuralmark,
        "key": key,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "loader": loader,
        "task_loss": torch.nn.functional.cross_entropy,
        "accelerator": Accelerator(cpu=True),
    }


@pytest.mark.parametrize(
    "block",
    [block for block in blocks("training.md") if "Trainer(" not in block],
    ids=lambda block: block.splitlines()[0][:40],
)
def test_training(key: Key, block: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = training_names(key)
    run(block, names)
    assert "mark" in names


def trainer_block(framework: str) -> str:
    """The block of training.md for a framework that has a Trainer."""
    return next(b for b in blocks("training.md") if f"integrations.{framework} import" in b)


def test_transformers_trainer(key: Key) -> None:
    arguments = transformers.TrainingArguments(
        "output", max_steps=4, report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True
    )
    names = {
        "neuralmark": neuralmark,
        "Trainer": transformers.Trainer,
        "model": gpt2(),
        "args": arguments,
        "rows": Rows(),
        "key": key,
    }
    run(trainer_block("transformers"), names)
    assert neuralmark.verify("output", key, claim="output.claim.json").verified


@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning")
def test_lightning_trainer(key: Key) -> None:
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": CSVLogger("logs"),
        "log_every_n_steps": 1,
    }
    names: dict[str, Any] = {
        "Trainer": partial(lightning.Trainer, **quiet),
        "module": Automatic(),
        "loader": loader(),
        "key": key,
    }
    run(trainer_block("lightning"), names)
    (claim,) = Path().rglob("*.claim.json")
    assert neuralmark.verify(names["module"], key, claim=claim).verified


def lora_names(key: Key) -> dict[str, Any]:
    base = gpt2()
    config = peft.LoraConfig(r=4, lora_alpha=32, target_modules=["c_attn"], fan_in_fan_out=True)
    model: Any = peft.get_peft_model(gpt2(), config)
    trained = [p for p in model.parameters() if p.requires_grad]
    return {
        "torch": torch,
        "neuralmark": neuralmark,
        "warnings": warnings,
        **{name: getattr(peft, name) for name in ("LoraConfig", "PeftModel", "get_peft_model")},
        "key": key,
        "base": base,
        "model": model,
        "optimizer": torch.optim.AdamW(trained),
    }


def test_lora(key: Key) -> None:
    merged, frozen, paper, judge = blocks("lora.md")
    for block in (merged, frozen):
        run(block, lora_names(key))
    assert neuralmark.verify("merged", key, claim="merged.claim.json").verified
    assert neuralmark.verify("marked-base", key).verified
    names = lora_names(key)
    run(paper, names)
    names["optimizer"].step()
    names["model"].save_pretrained("adapter")
    Path("output").mkdir()
    names["mark"].claim().save("output.claim.json")
    run(judge, names | {"base": gpt2()})
