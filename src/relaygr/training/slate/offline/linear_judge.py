"""A judge of few numbers: regularised logistic regressions on the ranker's outputs and the context.

It shares nothing with step models but the features: no hidden layers, no random weights, another fit
(Newton's method). Binary heads only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise import artefact
from relaygr.listwise.arrays import Float32, Float64
from relaygr.listwise.features import FeatureTable
from relaygr.listwise.folds import Fold, Lineage
from relaygr.listwise.pool import Head, HeadKind, sigmoid
from relaygr.listwise.step import DEFAULT_WINDOW, HeadSpec, hazard
from relaygr.listwise.value import ValueFunction
from relaygr.training.slate.learnable import check_learnable
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.offline.judge import Predicted, check_heads, closed_form
from relaygr.training.slate.rows import context_of

NAME = "judge"
ARCH = "linear"
_STEPS, _DONE = 50, 1e-10


class LinearConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the regressions read.

    Attributes:
        features: of the picks before a position; see `listwise/features.py`.
        ridge: of the coefficients of standardised inputs, in rows.
        exit: whether users leave.
        fold: whose users it learned from.
    """

    heads: tuple[HeadSpec, ...]
    features: tuple[str, ...]
    window: int = DEFAULT_WINDOW
    ridge: float = 1.0
    exit: bool = True
    fold: Fold | None = None


class LinearJudge:
    """A fitted judge. Arrays: `centre`, `scale` [I]; `weights` [K + 1, I + 1], the last row of the exit.

    Inputs are outputs of the heads, features and squares of features; for the exit the predicted logits of
    the heads stand in for their outputs.

    Raises:
        ConfigError: naming what does not fit.
    """

    def __init__(self, config: LinearConfig, tensors: Mapping[str, Float32], value: ValueFunction) -> None:
        check_heads(tuple(Head(each.name, each.kind) for each in config.heads), value)
        _check_binary(config)
        K, inputs = len(config.heads), len(config.heads) + 2 * len(config.features)
        wanted = {"centre": (inputs,), "scale": (inputs,), "weights": (K + 1, inputs + 1)}
        artefact.check(NAME, tensors, wanted)
        self.config, self.tensors, self._value = config, dict(tensors), value
        self._table = FeatureTable([config.features], config.window)
        version = artefact.version_of(config, tensors)
        self.lineage = Lineage(version=f"linear:{version}", fold=config.fold, arch=ARCH)

    def predict(self, logs: LoggedLists) -> Predicted:
        """As `ListJudge`."""
        N, L = logs.items.shape
        K = len(self.config.heads)
        weights = self.tensors["weights"].astype(np.float64)
        rows = self._standard(_inputs(self._table, logs).reshape(N * L, -1))
        logits = rows @ weights[:K, :-1].T + weights[:K, -1]  # [N * L, K]
        leave = np.zeros((N, L))
        if self.config.exit:
            rows[:, :K] = logits
            leave = hazard(rows @ weights[K, :-1] + weights[K, -1]).reshape(N, L)
        return closed_form(sigmoid(logits).reshape(N, L, K), leave, logs, self._value)

    def _standard(self, rows: Float64) -> Float64:
        return (rows - self.tensors["centre"]) / self.tensors["scale"]

    def save(self, folder: Path) -> None:
        """Write `judge.json` and `judge.safetensors`."""
        artefact.save(folder, NAME, self.config, self.tensors)

    @classmethod
    def load(cls, folder: Path, value: ValueFunction) -> LinearJudge:
        """Read what `save` wrote. Raises ConfigError."""
        return cls(*artefact.load(folder, NAME, LinearConfig), value)


def fit_linear(config: LinearConfig, logs: LoggedLists, value: ValueFunction) -> LinearJudge:
    """Fit to the consumed positions of logged lists; what stands behind an exit is not read.

    Raises:
        ConfigError: a head is not binary or has no label; nothing was consumed.
    """
    _check_binary(config)
    check_learnable(logs, "the judge's users")
    table = FeatureTable([config.features], config.window)
    seen, K = logs.observed, len(config.heads)
    raw = _inputs(table, logs)[seen]
    centre, scale = raw.mean(axis=0), raw.std(axis=0)
    scale[scale < 1e-9] = 1.0
    rows = (raw - centre) / scale
    weights = np.zeros((K + 1, rows.shape[1] + 1))
    labels = logs.labels[seen].astype(np.float64)
    logits = np.empty((len(rows), K))
    for at, head in enumerate(config.heads):
        known = np.isfinite(labels[:, at])
        if not known.any():
            raise ConfigError("labels", f"of head {head.name!r} there are none")
        weights[at] = _logistic(rows[known], labels[known, at], config.ridge)
        logits[:, at] = rows @ weights[at, :-1] + weights[at, -1]
    leaves = logs.leaves()[seen]
    known = np.isfinite(leaves)
    if config.exit and (leaves[known] == 1).any():
        rows[:, :K] = logits
        weights[K] = _logistic(rows[known], leaves[known], config.ridge)
    elif config.exit:
        raise ConfigError("labels", "no list says where a user left")
    tensors = {"centre": centre, "scale": scale, "weights": weights}
    return LinearJudge(config, {name: each.astype(np.float32) for name, each in tensors.items()}, value)


def _inputs(table: FeatureTable, logs: LoggedLists) -> Float64:
    """[N, L, K + 2 F]"""
    context = context_of(table, logs)
    return np.concatenate([logs.outputs.astype(np.float64), context, context**2], axis=2)


def _logistic(rows: Float64, labels: Float64, ridge: float) -> Float64:
    """Coefficients and intercept of least penalised log loss, by Newton's method. [I + 1]"""
    x = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    penalty = np.full(x.shape[1], ridge)
    penalty[-1] = 1e-6
    rate = np.clip(labels.mean(), 1e-3, 1 - 1e-3)
    at = np.zeros(x.shape[1])
    at[-1] = np.log(rate / (1 - rate))
    loss = _loss(at, x, labels, penalty)
    for _ in range(_STEPS):
        p = sigmoid(x @ at)
        gradient = x.T @ (p - labels) + penalty * at
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while (tried := _loss(at - size * step, x, labels, penalty)) > loss and size > 1e-6:
            size /= 2
        if tried > loss:
            break
        at, gained, loss = at - size * step, loss - tried, tried
        if gained <= _DONE * max(loss, 1.0):
            break
    return at


def _loss(at: Float64, x: Float64, labels: Float64, penalty: Float64) -> float:
    logits = x @ at
    return float((np.logaddexp(0, logits) - labels * logits).sum() + 0.5 * (penalty * at * at).sum())


def _check_binary(config: LinearConfig) -> None:
    for head in config.heads:
        if head.kind is not HeadKind.BINARY:
            raise ConfigError(
                "judge", f"head {head.name!r} is a regression; a linear judge takes binary ones"
            )
