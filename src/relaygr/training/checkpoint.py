"""The state of a training run on disk, whole or not at all, and whether another run may continue it."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import torch

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events

STATE_FILE = "training.pt"
FORMAT_VERSION = 1
DIGEST_BYTES = 16  # in front of the state, so that damage is noticed before anything is read from it
# When to stop is not part of what is being trained: a run may be continued with other limits.
_LIMITS = ("max_minutes", "max_steps", "patience")


class Measured(Protocol):
    """A measurement on the validation requests; the higher its quality the better the weights."""

    @property
    def quality(self) -> float: ...


AnyEvaluation = TypeVar("AnyEvaluation", bound=Measured)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Quality on the validation requests after `step` steps; the loss is the mean since the one before."""

    step: int
    elapsed_s: float
    loss: float
    ndcg: float
    hr: float
    auc: float

    @property
    def quality(self) -> float:
        return self.ndcg


@dataclass(slots=True)
class RunState(Generic[AnyEvaluation]):
    """What changes while training, beside weights and optimiser; updated in place by the trainer."""

    step: int = 0
    elapsed_s: float = 0.0
    tokens: int = 0
    loss_sum: float = 0.0
    loss_steps: int = 0
    since_best: int = 0
    evaluations: tuple[AnyEvaluation, ...] = ()

    @property
    def best(self) -> AnyEvaluation | None:
        """The evaluation of the highest quality, the earliest of equal ones."""
        return max(self.evaluations, key=lambda one: one.quality, default=None)

    @property
    def loss(self) -> float:
        """Mean loss since the last evaluation."""
        return self.loss_sum / max(self.loss_steps, 1)


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What must be equal for a run to be continued."""

    data: str
    model: str
    train: str

    @classmethod
    def of(
        cls, events: Events, model: msgspec.Struct, train: msgspec.Struct, beside: str = ""
    ) -> RunIdentity:
        """Of a dataset, a model's shape and settings; `beside` names other data that is trained on."""
        settings = {
            name: value for name, value in msgspec.structs.asdict(train).items() if name not in _LIMITS
        }
        return cls(
            data_fingerprint(events) + beside,
            msgspec.json.encode(model).decode(),
            msgspec.json.encode(settings).decode(),
        )


def data_fingerprint(events: Events) -> str:
    """BLAKE2b-128 of all columns, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    for column in (events.users, events.offsets, events.item_ids, events.timestamps, events.actions):
        digest.update(column.tobytes())
    return digest.hexdigest()


def save_state(
    folder: Path,
    identity: RunIdentity,
    state: RunState[AnyEvaluation],
    weights: dict[str, Any],
    optimizers: dict[str, Any],
) -> None:
    """Write `training.pt`; an older one stays until the new one is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{STATE_FILE}.tmp"
    record = {
        "format_version": FORMAT_VERSION,
        "data": identity.data,
        "model": identity.model,
        "train": identity.train,
        "step": state.step,
        "elapsed_s": state.elapsed_s,
        "tokens": state.tokens,
        "loss_sum": state.loss_sum,
        "loss_steps": state.loss_steps,
        "since_best": state.since_best,
        "evaluations": msgspec.json.encode(state.evaluations).decode(),
        "weights": weights,
        "optimizers": optimizers,
    }
    buffer = io.BytesIO()
    torch.save(record, buffer)
    data = buffer.getvalue()
    temporary.write_bytes(_digest(data) + data)
    os.replace(temporary, folder / STATE_FILE)


def load_state(
    folder: Path, identity: RunIdentity, kind: type[AnyEvaluation]
) -> tuple[RunState[AnyEvaluation], dict[str, Any], dict[str, Any]]:
    """(state, weights, optimiser states) of the run in `folder`, whose evaluations are of `kind`.

    Raises:
        ConfigError: there is none, it is damaged, or it was made with other data, another model or other
            settings.
    """
    path = folder / STATE_FILE
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise ConfigError("resume", f"cannot read {path}: {error.strerror}") from error
    digest, data = stored[:DIGEST_BYTES], stored[DIGEST_BYTES:]
    if digest != _digest(data):
        raise ConfigError("resume", f"{path} is damaged or not a training state: its digest does not match")
    try:
        record = torch.load(io.BytesIO(data), weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ConfigError("resume", f"{path} is not a training state: {error}") from error
    if not isinstance(record, dict) or record.get("format_version") != FORMAT_VERSION:
        raise ConfigError("resume", f"{path} was not written by this release")
    if record["data"] != identity.data:
        raise ConfigError("resume", f"{path} was trained on data {record['data']}, this is {identity.data}")
    for part in ("model", "train"):
        if record[part] != getattr(identity, part):
            raise ConfigError("resume", f"{path}: {_difference(part, record[part], getattr(identity, part))}")
    state = RunState(
        step=record["step"],
        elapsed_s=record["elapsed_s"],
        tokens=record["tokens"],
        loss_sum=record["loss_sum"],
        loss_steps=record["loss_steps"],
        since_best=record["since_best"],
        evaluations=msgspec.json.decode(record["evaluations"], type=tuple[kind, ...]),  # type: ignore[valid-type]
    )
    return state, record["weights"], record["optimizers"]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _difference(part: str, stored: str, wanted: str) -> str:
    old, new = msgspec.json.decode(stored), msgspec.json.decode(wanted)
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return "; ".join(f"{part}.{name} was {old.get(name)!r}, now {new.get(name)!r}" for name in names)
