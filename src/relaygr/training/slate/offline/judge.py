"""Judges: list models that value lists they did not help to choose, and the proof that they did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64
from relaygr.listwise.folds import Fold, Lineage, check_judge
from relaygr.listwise.lists import survivals
from relaygr.listwise.step import StepModel, hazard
from relaygr.listwise.value import ValueFunction
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.rows import context_of

_CHUNK = 4000  # lists that are valued at once


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """What a model says of N lists; positions behind `shown` are 0.

    Attributes:
        heads: float64 [N, L, K], probabilities and values.
        leave, value: float64 [N, L].
        utility: float64 [N].
    """

    heads: Float64
    leave: Float64
    value: Float64
    utility: Float64


class ListJudge(Protocol):
    """Values lists as a user would get them, whether they were shown or not.

    `predict` reads items, outputs, attributes and vectors of logged lists, never their labels or how far the
    user got.
    """

    @property
    def lineage(self) -> Lineage: ...

    def predict(self, logs: LoggedLists) -> Predicted: ...


class StepJudge:
    """A step model as judge.

    Raises:
        ConfigError: the two are of different heads.
    """

    def __init__(
        self, step: StepModel, value: ValueFunction, fold: Fold | None = None, seed: int = 0
    ) -> None:
        if step.heads != value.heads:
            raise ConfigError("judge", f"its heads {step.heads} are not the value function's {value.heads}")
        self._step, self._value = step, value
        self.lineage = Lineage(version=step.version, fold=fold, arch="step", seed=seed)

    def predict(self, logs: LoggedLists) -> Predicted:
        parts = [self._part(logs.select(slice(at, at + _CHUNK))) for at in range(0, len(logs), _CHUNK)]
        return Predicted(
            np.concatenate([each.heads for each in parts]),
            np.concatenate([each.leave for each in parts]),
            np.concatenate([each.value for each in parts]),
            np.concatenate([each.utility for each in parts]),
        )

    def _part(self, logs: LoggedLists) -> Predicted:
        step, (N, L) = self._step, logs.items.shape
        K = len(step.heads)
        context = context_of(step.features, logs, step.config.watch_head)  # [N, L, F]
        columns = np.ascontiguousarray(context.reshape(N * L, -1).T)
        sums = np.zeros((K + 1, N * L))
        for net in step.nets:
            sums += net(columns)
        base = logs.outputs.astype(np.float64).reshape(N * L, K).T[:, None]  # [K, 1, N * L]
        conditional = step.conditional(base, sums[:K, None])[:, 0]
        heads = step.natural(conditional)
        leave = np.zeros((N, L))
        if step.config.exit:
            term = step.exit_term(conditional)
            logits = sums[K] if term is None else sums[K] + term
            biases = np.array([step.exit_bias_at(t) for t in range(L)])
            leave = hazard(logits.reshape(N, L) + biases)
        inside = np.arange(L) < logs.shown[:, None]
        value = np.where(inside, self._value(heads).reshape(N, L), 0.0)
        utility = (survivals(leave) * value).sum(axis=1)
        by_list = heads.T.reshape(N, L, K) * inside[..., None]
        return Predicted(by_list, np.where(inside, leave, 0.0), value, utility)


def check_independent(judge: Lineage, selectors: Sequence[Lineage], unrecorded: bool = False) -> str:
    """Refuse a judge that is a selector or that is not known to be independent; say what is known.

    Args:
        unrecorded: take models that do not say whose users they learned from, other than the judge itself.

    Raises:
        ConfigError: naming both.
    """
    known = [one for one in selectors if one.fold is not None]
    if not unrecorded or (judge.fold is not None and len(known) == len(selectors)):
        check_judge(judge, selectors)
        return f"{judge.version} learned from users of its own, by another architecture ({judge.arch})"
    if judge.fold is not None:
        check_judge(judge, known)
    for one in selectors:
        if one.version == judge.version:
            raise ConfigError("judge", f"{judge.version} is the selector itself")
    return "whose users the selector or the judge learned from is not recorded: independence is not shown"
