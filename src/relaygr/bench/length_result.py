"""What `relaygr eval length` measured, as it stands in `length.json`."""

from __future__ import annotations

import msgspec

from relaygr.bench.demo_result import MachineNote
from relaygr.config.settings import TrainConfig
from relaygr.training.length import LengthReport


class TrainedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One training run of the study.

    Attributes:
        folder: below OUT.
        stopped: which limit ended it; "time" means that another run gives other weights.
        valid_ndcg: NDCG@10 of the stored weights on the trainer's validation requests, None without any.
        reused: it was finished before this call of the command.
    """

    folder: str
    seed: int
    steps: int
    seconds: float
    stopped: str
    valid_ndcg: float | None
    fingerprint: str
    reused: bool


class LengthDataset(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset: what it is, what must be said with its figures, its models and its reports.

    Attributes:
        train: settings of all its models but for the seed.
    """

    name: str
    source: str
    licence: str
    notes: tuple[str, ...]
    fingerprint: str
    users: int
    events: int
    items: int
    train: TrainConfig
    models: tuple[TrainedModel, ...]
    reports: tuple[LengthReport, ...]


class LengthStudy(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; dates are UTC."""

    relaygr: str
    command: str
    started: str
    finished: str
    seconds: float
    machine: MachineNote
    preset: str
    caps: tuple[int, ...]
    seeds: tuple[int, ...]
    datasets: tuple[LengthDataset, ...]
