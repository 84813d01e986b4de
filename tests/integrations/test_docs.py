"""The Python in docs/training.md and docs/lora.md runs as it stands."""

import re
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from tests.integrations.tiny import gpt2

import neuralmark
from neuralmark import Key

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
