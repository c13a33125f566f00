"""How good a judge is on logged lists: by head, by position and context, and of whole lists."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from relaygr.listwise.arrays import Bool, Float64, Int64
from relaygr.listwise.features import FeatureTable
from relaygr.listwise.pool import HeadKind
from relaygr.listwise.step import DEFAULT_WINDOW
from relaygr.listwise.value import ValueFunction
from relaygr.training.bootstrap import interval, resample
from relaygr.training.metrics import auc
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.offline.explored import rewards
from relaygr.training.slate.offline.judge import Predicted
from relaygr.training.slate.rows import context_of

EXIT = "exit"
_BINS = 15
_BUCKETS = 4
_FEWEST = 30  # rows of a bucket whose calibration is told
_TINY = 1e-12


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted and observed means of the consumed positions in one bucket."""

    name: str
    rows: int
    predicted: float
    observed: float


class HeadQuality(msgspec.Struct, frozen=True, kw_only=True):
    """One head, or the exit, on consumed positions with a label.

    Attributes:
        auc: of binary heads with both labels; None otherwise.
        log_loss: in nats; of regression heads the exponential one, log y' + y / y'.
        base_log_loss: of predicting the mean.
        ece: expected calibration error in 15 bins of equal size; of regression heads relative to the mean.
        positions, contexts: calibration by position, and by quartiles of features of the context.
    """

    name: str
    rows: int
    auc: float | None
    log_loss: float
    base_log_loss: float
    ece: float
    positions: tuple[Bucket, ...]
    contexts: tuple[Bucket, ...]


class JudgeQuality(msgspec.Struct, frozen=True, kw_only=True):
    """A judge on logged lists.

    Attributes:
        rank_correlation: Spearman's, of the judged with the realised value of whole lists, with a 95 %
            interval over users at fixed ranks; None if either is the same for all. Of lists that were filled,
            as a longer list is worth more whatever is in it.
    """

    heads: tuple[HeadQuality, ...]
    rank_correlation: float | None
    low: float | None
    high: float | None
    lists: int


def judge_quality(
    predicted: Predicted, logs: LoggedLists, value: ValueFunction, seed: int = 0
) -> JudgeQuality:
    """Judge what was logged, on what users got to see."""
    seen = logs.observed
    contexts = _contexts(logs, seen)
    _, position = np.nonzero(seen)
    rows = []
    for at, head in enumerate(logs.heads):
        labels = logs.labels[..., at][seen].astype(np.float64)
        said = predicted.heads[..., at][seen]
        rows.append(_head(head.name, head.kind is HeadKind.BINARY, said, labels, position, contexts))
    if predicted.leave.any():
        rows.append(_head(EXIT, True, predicted.leave[seen], logs.leaves()[seen], position, contexts))
    observed = rewards(value, logs).sum(axis=1)
    known = np.isfinite(observed) & (logs.shown == logs.asked)
    found, low, high = rank_correlation(predicted.utility[known], observed[known], logs.users[known], seed)
    return JudgeQuality(
        heads=tuple(each for each in rows if each is not None),
        rank_correlation=found,
        low=low,
        high=high,
        lists=int(known.sum()),
    )


def _contexts(logs: LoggedLists, seen: Bool) -> dict[str, Float64]:
    """Features of what stood before each consumed position, computed without any model."""
    names = [f"count:{name}" for name in logs.attributes]
    if logs.vectors is not None:
        names.insert(0, "similarity:max")
    if not names:
        return {}
    table = FeatureTable([names], DEFAULT_WINDOW)
    values = context_of(table, logs)[seen]
    return {name: values[:, table.rows([name])[0]] for name in names}


def _head(
    name: str,
    binary: bool,
    said: Float64,
    labels: Float64,
    position: Int64,
    contexts: dict[str, Float64],
) -> HeadQuality | None:
    known = np.isfinite(labels)
    if not known.any():
        return None
    said, labels, position = said[known], labels[known], position[known]
    positive = labels > 0
    both = binary and bool(positive.any()) and not positive.all()
    mean = np.full(len(labels), labels.mean())
    error = expected_calibration_error(said, labels)
    return HeadQuality(
        name=name,
        rows=len(labels),
        auc=auc(said, positive) if both else None,
        log_loss=_loss(said, labels, binary),
        base_log_loss=_loss(mean, labels, binary),
        ece=error if binary else error / max(float(labels.mean()), _TINY),
        positions=tuple(
            _bucket(f"{t + 1}", position == t, said, labels)
            for t in np.unique(position).tolist()
            if (position == t).sum() >= _FEWEST
        ),
        contexts=tuple(
            _bucket(label, inside, said, labels)
            for feature, values in contexts.items()
            for label, inside in _quantiles(feature, values[known])
            if inside.sum() >= _FEWEST
        ),
    )


def _loss(said: Float64, labels: Float64, binary: bool) -> float:
    if binary:
        kept = np.clip(said, _TINY, 1 - _TINY)
        return float(-(labels * np.log(kept) + (1 - labels) * np.log1p(-kept)).mean())
    kept = np.maximum(said, _TINY)
    return float((np.log(kept) + labels / kept).mean())


def _bucket(name: str, inside: Bool, said: Float64, labels: Float64) -> Bucket:
    return Bucket(
        name=name,
        rows=int(inside.sum()),
        predicted=float(said[inside].mean()),
        observed=float(labels[inside].mean()),
    )


def _quantiles(feature: str, values: Float64) -> list[tuple[str, Bool]]:
    """Up to four buckets of about the same size; equal values stay together."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, _BUCKETS + 1)))
    if len(edges) == 1:
        return []
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return [(f"{feature} {edges[at]:.3g}..{edges[at + 1]:.3g}", place == at) for at in range(len(edges) - 1)]


def expected_calibration_error(said: Float64, labels: Float64, bins: int = _BINS) -> float:
    """Mean of |predicted - observed| over bins of equal size by the prediction."""
    order = np.argsort(said, kind="stable")
    parts = np.array_split(order, min(bins, len(order)))
    gaps = [abs(float(said[part].mean() - labels[part].mean())) * len(part) for part in parts]
    return sum(gaps) / len(order)


def rank_correlation(
    judged: Float64, observed: Float64, users: Int64, seed: int = 0
) -> tuple[float | None, float | None, float | None]:
    """Spearman's with ties, and its 95 % interval of a bootstrap over users at fixed ranks."""
    if len(judged) < 2:
        return None, None, None
    x, y = ranks(judged), ranks(observed)
    x, y = x - x.mean(), y - y.mean()
    if not x.any() or not y.any():
        return None, None, None
    drawn = resample(np.stack([x, y, x * y, x * x, y * y], axis=1), users, per_user=False, seed=seed)
    low, high = interval(_correlation(drawn.draws))
    return float(_correlation(drawn.observed[None])[0]), low, high


def _correlation(means: Float64) -> Float64:
    x, y, xy, xx, yy = means.T
    spread = np.sqrt(np.maximum(xx - x * x, _TINY) * np.maximum(yy - y * y, _TINY))
    found: Float64 = (xy - x * y) / spread
    return found


def ranks(values: Float64 | Sequence[float]) -> Float64:
    """From 1; equal values share the mean of their ranks."""
    _, places, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: Float64 = (ends - (counts - 1) / 2.0)[places]
    return found
