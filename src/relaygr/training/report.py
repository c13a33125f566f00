"""What a training run leaves beside the weights: data, split, settings and how quality went."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from relaygr.config.settings import TrainConfig
from relaygr.training.checkpoint import Evaluation

REPORT_FILE = "train_report.json"

Stopped = Literal["steps", "time", "patience"]


class TrainReport(msgspec.Struct, frozen=True, kw_only=True):
    """One finished run.

    Attributes:
        data, data_fingerprint: name and content of the dataset.
        train_end_s, valid_end_s: training is before the first, validation between the two.
        tasks: the heads, in order; the first ranks.
        steps, tokens, elapsed_s: optimiser steps, history tokens encoded, seconds with validation.
        stopped: which limit ended the run.
        best: the evaluation whose weights are stored; None without validation requests, then the last
            weights are.
        model_fingerprint: of the stored weights.
    """

    data: str
    data_fingerprint: str
    train_end_s: int
    valid_end_s: int
    tasks: tuple[str, ...]
    steps: int
    tokens: int
    elapsed_s: float
    stopped: Stopped
    best: Evaluation | None
    evaluations: tuple[Evaluation, ...]
    model_fingerprint: str
    train: TrainConfig


def write_report(report: TrainReport, folder: Path) -> None:
    """Write `train_report.json`, whole or not at all."""
    temporary = folder / f"{REPORT_FILE}.tmp"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    os.replace(temporary, folder / REPORT_FILE)
