"""What training a generator leaves beside the weights: data, ids, settings and how recall went."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from relaygr.config.train_generator import TrainGeneratorConfig
from relaygr.training.report import REPORT_FILE, Stopped


class GeneratorEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Quality on the validation requests after `step` steps; the loss is the mean since the one before.

    Attributes:
        loss: nats an item.
        recall, ndcg: at 10, of the items found by beam search.
    """

    step: int
    elapsed_s: float
    loss: float
    recall: float
    ndcg: float

    @property
    def quality(self) -> float:
        return self.recall


class GeneratorReport(msgspec.Struct, frozen=True, kw_only=True):
    """One finished run.

    Attributes:
        data, data_fingerprint: name and content of the dataset; the content names the ids as well.
        train_end_s, valid_end_s: training is before the first, validation between the two.
        sids: digest of the build of semantic ids.
        steps, items, elapsed_s: optimiser steps, items of the windows, seconds with validation.
        stopped: which limit ended the run.
        best: the evaluation whose weights are stored; None without validation requests, then the last
            weights are.
    """

    data: str
    data_fingerprint: str
    train_end_s: int
    valid_end_s: int
    sids: str
    parameters: int
    steps: int
    items: int
    elapsed_s: float
    stopped: Stopped
    best: GeneratorEvaluation | None
    evaluations: tuple[GeneratorEvaluation, ...]
    settings: TrainGeneratorConfig


def write_generator_report(report: GeneratorReport, folder: Path) -> None:
    """Write `train_report.json`, whole or not at all."""
    temporary = folder / f"{REPORT_FILE}.tmp"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    os.replace(temporary, folder / REPORT_FILE)
