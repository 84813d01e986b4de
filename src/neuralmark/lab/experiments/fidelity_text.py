"""Text written by GPT-2 with and without a mark in its LoRA adapter (table 3)."""

from typing import ClassVar

from neuralmark.lab.comparing import Cell, beside, percent
from neuralmark.lab.contract import Experiment, Results, Table
from neuralmark.lab.experiments._paper import TEXT
from neuralmark.lab.plan.columns import TITLES
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import MarkingSpec, Spec, TuningSpec

TWO = ("clean", "neuralmark")
SCORES = {"BLEU": "bleu", "NIST": "nist", "MET": "meteor", "ROUGE-L": "rouge_l", "CIDEr": "cider"}
SHARES = ("bleu", "meteor", "rouge_l")
"""Scores that the paper gives in percent."""


class FidelityText(Experiment):
    """GPT-2 tuned on E2E by LoRA, the mark in the product of the last block's adapter."""

    answers: ClassVar[str] = "what does a mark cost in the quality of text?"
    paper: ClassVar[str] = "table 3"
    place: ClassVar[int] = 3

    def runs(self, preset: Preset) -> list[Spec]:
        """Clean and NeuralMark for each model and seed."""
        return [
            spec
            for model in preset.text.models
            for scheme in TWO
            for spec in _cell(preset, model, scheme)
        ]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """One table per model, with the five scores."""
        scale = preset.text
        note = f"{scale.meanings or 'all'} test meanings, {scale.beams} beams; NIST is of order 5"
        return [
            Table(
                f"Text on E2E, {model}",
                ("", *SCORES, "detection rate"),
                tuple((TITLES[scheme], *_scores(preset, results, model, scheme)) for scheme in TWO),
                note if (model, "clean") in TEXT else f"{note}; the paper's values are GPT-2-S's",
                specs=tuple(spec for scheme in TWO for spec in _cell(preset, model, scheme)),
            )
            for model in preset.text.models
        ]


def _scores(preset: Preset, results: Results, model: str, scheme: str) -> list[Cell | str]:
    specs = _cell(preset, model, scheme)
    rows = [row for row in results.of(specs) if "scores" in row]
    theirs = TEXT.get((model, scheme), TEXT["gpt2", scheme])
    cells: list[Cell | str] = []
    for i, score in enumerate(SCORES.values()):
        found = [row["scores"][score] / (1 if score in SHARES else 100) for row in rows]
        cells.append(Cell(percent(found), "" if theirs is None else f"{theirs[i]:.2f}"))
    rates = results.values(specs, "rate")
    if scheme == "clean":
        return [*cells, "–"]
    return [*cells, beside(percent(rates), "100", specs, rates)]


def _cell(preset: Preset, model: str, scheme: str) -> list[TuningSpec]:
    scale = preset.text
    mark = None if scheme == "clean" else MarkingSpec(scheme, strength=scale.strength)
    return [
        TuningSpec(
            model,
            scale.epochs,
            scale.rate,
            scale.batch,
            scale.warm_up,
            start=_start(preset, model, seed),
            rows=scale.rows,
            meanings=scale.meanings,
            beams=scale.beams,
            seed=seed,
            mark=mark,
        )
        for seed in preset.training.seeds
    ]


def _start(preset: Preset, model: str, seed: int) -> TuningSpec | None:
    """A model of our own to begin with, where there are no published weights."""
    scale = preset.text
    if not scale.base_epochs:
        return None
    return TuningSpec(
        model,
        scale.base_epochs,
        scale.base_rate,
        scale.base_batch,
        scale.warm_up,
        adapted=False,
        rows=scale.base_rows,
        meanings=0,
        seed=seed,
    )
