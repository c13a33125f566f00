"""Judges: list models that value lists they did not help to choose, and the proof that they did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64
from relaygr.listwise.folds import Lineage, check_judge
from relaygr.listwise.list_net import ListNet
from relaygr.listwise.lists import survivals
from relaygr.listwise.pool import MISSING, Head
from relaygr.listwise.step import StepModel, hazard
from relaygr.listwise.trained import place_relations
from relaygr.listwise.value import ValueFunction
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.rows import context_of
from relaygr.training.slate.said import said

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

    Args:
        lineage: by default what the model records.

    Raises:
        ConfigError: the two are of different heads.
    """

    def __init__(self, step: StepModel, value: ValueFunction, lineage: Lineage | None = None) -> None:
        check_heads(step.heads, value)
        self._step, self._value = step, value
        self.lineage = lineage or step.lineage

    def predict(self, logs: LoggedLists) -> Predicted:
        """As `ListJudge`."""
        parts = [self._part(part) for part in chunks(logs)]
        return joined(parts)

    def _part(self, logs: LoggedLists) -> Predicted:
        return closed_form(*said(self._step, logs), logs, self._value)


class NetJudge:
    """A trained list net as judge: the mean over its members.

    Raises:
        ConfigError: the two are of different heads.
    """

    def __init__(self, net: ListNet, value: ValueFunction) -> None:
        check_heads(net.heads, value)
        self._net, self._value = net, value
        self.lineage = net.lineage

    def predict(self, logs: LoggedLists) -> Predicted:
        """As `ListJudge`."""
        return joined([self._part(part) for part in chunks(logs)])

    def _part(self, logs: LoggedLists) -> Predicted:
        context = context_of(self._net.features, logs, self._net.config.watch_head)
        heads, leave = self._net(context, logs.outputs.astype(np.float64), self._relations(logs))
        members = [
            closed_form(each.transpose(1, 2, 0), hazard(left), logs, self._value)
            for each, left in zip(heads, leave, strict=True)
        ]
        return Predicted(
            np.mean([each.heads for each in members], axis=0),
            np.mean([each.leave for each in members], axis=0),
            np.mean([each.value for each in members], axis=0),
            np.mean([each.utility for each in members], axis=0),
        )

    def _relations(self, logs: LoggedLists) -> Float64:
        """As the evaluator's, of logged lists. [N, R, L, L]"""
        config, (N, L) = self._net.config, logs.items.shape
        if not config.relation_inputs:
            return np.zeros((N, 0, L, L))
        found = list[Float64]()
        if config.similarity:
            if logs.vectors is None:
                raise ConfigError("vectors", "the logs have none, and the judge compares items by them")
            vectors = logs.vectors.astype(np.float64)
            found.append(vectors @ vectors.swapaxes(1, 2))
        for name in config.relations:
            if name not in logs.attributes:
                raise ConfigError("attributes", f"the logs lack {name!r}, which the judge reads")
            values = logs.attributes[name]
            equal = (values[:, :, None] == values[:, None, :]) & (values != MISSING)[:, :, None]
            found.append(equal.astype(np.float64))
        found += [np.broadcast_to(each, (N, L, L)) for each in place_relations(L)]
        return np.stack(found, axis=1)


def closed_form(heads: Float64, leave: Float64, logs: LoggedLists, value: ValueFunction) -> Predicted:
    """U of lists from heads [N, L, K] and exits [N, L]; nothing behind `shown` counts."""
    inside = np.arange(logs.items.shape[1]) < logs.shown[:, None]
    worth = np.where(inside, value(np.ascontiguousarray(heads.transpose(2, 0, 1))), 0.0)
    left = np.where(inside, leave, 0.0)
    return Predicted(heads * inside[..., None], left, worth, (survivals(left) * worth).sum(axis=1))


def chunks(logs: LoggedLists) -> list[LoggedLists]:
    """The same lists, some thousands at a time."""
    return [logs.select(slice(at, at + _CHUNK)) for at in range(0, len(logs), _CHUNK)]


def joined(parts: Sequence[Predicted]) -> Predicted:
    """One after the other."""
    return Predicted(
        np.concatenate([each.heads for each in parts]),
        np.concatenate([each.leave for each in parts]),
        np.concatenate([each.value for each in parts]),
        np.concatenate([each.utility for each in parts]),
    )


def check_heads(heads: tuple[Head, ...], value: ValueFunction) -> None:
    """Raise ConfigError where a judge's heads are not the value function's."""
    if heads != value.heads:
        raise ConfigError("judge", f"its heads {heads} are not the value function's {value.heads}")


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
