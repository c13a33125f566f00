"""What models say of logged lists, and how well that is calibrated."""

from __future__ import annotations

import msgspec
import numpy as np

from relaygr.listwise.arrays import Bool, Float64
from relaygr.listwise.pool import HeadKind
from relaygr.listwise.step import StepModel, hazard
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.rows import context_of

_BINS = 10


class CalibrationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One position of one head, or of the exit: mean of what was said and of what was seen."""

    head: str
    position: int
    rows: int
    said: float
    seen: float


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """By head and position; `ece`: mean |said - seen| over ten equal bins, by binary head and `exit`."""

    rows: tuple[CalibrationRow, ...]
    ece: dict[str, float]


def said(step: StepModel, logs: LoggedLists) -> tuple[Float64, Float64]:
    """Probabilities and values of heads [N, L, K] and probabilities of leaving [N, L] of shown lists."""
    context = context_of(step.features, logs, step.config.watch_head).transpose(0, 2, 1)  # [N, F, L]
    K = len(step.heads)
    terms = sum((net(context) for net in step.nets), np.zeros((len(logs), K + 1, logs.items.shape[1])))
    base = np.ascontiguousarray(logs.outputs.transpose(2, 0, 1), dtype=np.float64)  # [K, N, L]
    conditional = step.conditional(base, np.ascontiguousarray(terms[:, :K].transpose(1, 0, 2)))
    heads = step.natural(conditional).transpose(1, 2, 0)
    if not step.config.exit:
        return heads, np.zeros(heads.shape[:2])
    leave = np.array([step.exit_bias_at(t) for t in range(heads.shape[1])]) + terms[:, K]
    more = step.exit_term(np.ascontiguousarray(conditional.transpose(1, 0, 2)))
    return heads, hazard(leave if more is None else leave + more)


def calibration(step: StepModel, logs: LoggedLists) -> Calibrated:
    """Of positions that users got to; lists should be of users that the model has not seen."""
    heads, leave = said(step, logs)
    rows, ece = list[CalibrationRow](), dict[str, float]()
    columns = [
        (head.name, heads[..., k], logs.labels[..., k].astype(np.float64))
        for k, head in enumerate(logs.heads)
    ]
    if step.config.exit:
        columns.append(("exit", leave, logs.leaves()))
    for at, (name, told, happened) in enumerate(columns):
        known: Bool = logs.observed & np.isfinite(happened)
        for t in range(known.shape[1]):
            here = known[:, t]
            if here.any():
                rows.append(
                    CalibrationRow(
                        head=name,
                        position=t,
                        rows=int(here.sum()),
                        said=float(told[here, t].mean()),
                        seen=float(happened[here, t].mean()),
                    )
                )
        if known.any() and (at == len(logs.heads) or logs.heads[at].kind is HeadKind.BINARY):
            ece[name] = _ece(told[known], happened[known])
    return Calibrated(rows=tuple(rows), ece=ece)


def _ece(told: Float64, labels: Float64) -> float:
    order = np.argsort(told, kind="stable")
    parts = [each for each in np.array_split(order, _BINS) if len(each)]
    gaps = [len(each) * abs(float(told[each].mean()) - float(labels[each].mean())) for each in parts]
    return sum(gaps) / len(told)
