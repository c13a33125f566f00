"""Training of list nets, evaluators and judges alike, by maximum likelihood on what users got to see.

Losses are those of step models: what stands behind an exit is masked. A causal net cannot see what follows a
position; another one reads the whole list that was shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64, Int64
from relaygr.listwise.choose import Conformal
from relaygr.listwise.list_net import BucketQuantile, Calibration, ListNet, ListNetConfig
from relaygr.listwise.lists import survivals
from relaygr.listwise.pool import MISSING, HeadKind
from relaygr.listwise.step import hazard
from relaygr.listwise.trained import place_relations
from relaygr.listwise.value import ValueFunction
from relaygr.training.slate.learnable import check_learnable
from relaygr.training.slate.list_nets import ListMember, joined
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.losses import bernoulli, exponential
from relaygr.training.slate.rows import context_of

_LAST_RATE = 0.02  # of the learning rate, reached at the end
_FEWEST_EPOCHS, _MOST_EPOCHS, _LISTS_IN_ALL = 8, 40, 80_000
_CHUNK = 1000  # lists that are predicted at once


class ListTraining(Section, frozen=True, kw_only=True):
    """How a list net is trained.

    Attributes:
        epochs: of AdamW; 0 for 80,000 / lists, within 8 and 40.
        learning_rate, batch_lists, decay: of AdamW; `decay` goes for weights of layers.
        exit_logit: the exit bias to begin with.
        bootstrap: whether members of an ensemble learn from resampled users.
    """

    PATH: ClassVar[str] = "evaluator"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "epochs": Range(0, 10_000),
        "learning_rate": Range(0, 10, open_low=True),
        "batch_lists": Range(1, 1_000_000),
        "decay": Range(0, 100),
        "exit_logit": Range(-20, 20),
    }

    epochs: int = 0
    learning_rate: float = 3e-3
    batch_lists: int = 128
    decay: float = 0.1
    exit_logit: float = -2.0
    bootstrap: bool = True

    def epochs_for(self, lists: int) -> int:
        """Passes over so many lists."""
        return self.epochs or min(max(round(_LISTS_IN_ALL / lists), _FEWEST_EPOCHS), _MOST_EPOCHS)


def train_lists(
    config: ListNetConfig, logs: LoggedLists, training: ListTraining | None = None
) -> tuple[ListNet, float]:
    """Fit every member, and the mean loss of the last epoch.

    Raises:
        ConfigError: heads differ; the logs lack what the net reads; some user is not of the net's fold;
            nothing was consumed; the fit has no finite loss.
    """
    training = training or ListTraining()
    start = ListNet.zero(config, training.exit_logit)
    if start.heads != logs.heads:
        raise ConfigError("heads", f"the evaluator's {start.heads} are not the logs' {logs.heads}")
    if config.fold is not None and len(config.fold.rows(logs.users)) != len(logs):
        raise ConfigError("fold", f"some users of the logs are not of the part {config.fold.part.value!r}")
    check_learnable(logs)
    data = _Lists(start, logs)
    _, owner = np.unique(logs.users, return_inverse=True)
    users = int(owner.max()) + 1
    members, losses = list[ListMember](), list[float]()
    for member in range(config.members):
        random = np.random.default_rng((config.seed, member))
        weight = np.ones(len(logs))
        if training.bootstrap and config.members > 1:
            weight = np.bincount(random.integers(0, users, users), minlength=users)[owner].astype(np.float64)
        net = ListMember(start, member)
        losses.append(_descend(net, data, weight, training, config.seed * 1000 + member))
        if not np.isfinite(losses[-1]):
            raise ConfigError("outputs", f"or labels are too large to fit: the loss is {losses[-1]}")
        members.append(net)
    return joined(members, start), float(np.mean(losses))


class _Lists:
    """Logged lists as tensors."""

    def __init__(self, net: ListNet, logs: LoggedLists) -> None:
        self._config, self._logs = net.config, logs
        if net.config.relation_inputs:
            for name in net.config.relations:
                if name not in logs.attributes:
                    raise ConfigError("attributes", f"the logs lack {name!r}, which the evaluator wants")
            if net.config.similarity and logs.vectors is None:
                raise ConfigError("vectors", "the logs have none, and the evaluator needs them")
        self.context = _float(context_of(net.features, logs, net.config.watch_head))
        seen = logs.observed
        # What stands behind the last shown position is no number.
        there = np.arange(logs.items.shape[1]) < logs.shown[:, None]
        self.there = torch.from_numpy(there)
        self.context = torch.nan_to_num(self.context) * _float(there)[..., None]
        self.base = _float(np.where(there[..., None], logs.outputs, 0.0))
        labels = np.where(seen[..., None], logs.labels, np.nan)
        self.known, self.labels = _float(np.isfinite(labels)), _float(np.nan_to_num(labels))
        leaves = logs.leaves()
        self.ends, self.leave = _float(np.isfinite(leaves)), _float(np.nan_to_num(leaves))

    def __len__(self) -> int:
        return len(self._logs)

    def relations(self, rows: Int64) -> Tensor:
        """As `listwise.trained.relations_of`; 0 for positions that were not filled. [n, R, L, L]"""
        logs, config = self._logs, self._config
        L = logs.items.shape[1]
        if not config.relation_inputs:
            return torch.zeros(len(rows), 0, L, L)
        there = np.arange(L) < logs.shown[rows][:, None]
        both = there[:, :, None] & there[:, None, :]
        found = []
        if config.similarity and logs.vectors is not None:
            vectors = np.where(there[..., None], logs.vectors[rows], 0.0)
            found.append(vectors @ vectors.swapaxes(1, 2))
        for name in config.relations:
            values = logs.attributes[name][rows]
            same = (values[:, :, None] == values[:, None, :]) & (values != MISSING)[:, :, None]
            found.append((same & both).astype(np.float32))
        found += [np.where(both, each, 0.0) for each in place_relations(L)]
        return _float(np.stack(found, axis=1))


def _descend(net: ListMember, data: _Lists, weight: Float64, training: ListTraining, seed: int) -> float:
    epochs = training.epochs_for(len(data))
    layers = [each for name, each in net.named_parameters() if name.endswith("weight")]
    others = [each for name, each in net.named_parameters() if not name.endswith("weight")]
    groups = [{"params": layers, "weight_decay": training.decay}, {"params": others, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=training.learning_rate)
    steps = epochs * -(-len(data) // training.batch_lists)
    slower = torch.optim.lr_scheduler.LinearLR(adam, 1.0, _LAST_RATE, steps)
    order = torch.Generator().manual_seed(seed)
    weights = _float(weight)
    kinds = [each.kind for each in net.config.heads]
    mean = 0.0
    for _ in range(epochs):
        total = mass = 0.0
        for rows in torch.split(torch.randperm(len(data), generator=order), training.batch_lists):
            used = weights[rows].nonzero()[:, 0]
            if not len(used):
                continue
            rows = rows[used]
            conditional, leave = net(
                data.context[rows], data.base[rows], data.relations(rows.numpy()), data.there[rows]
            )
            losses = torch.zeros_like(leave)
            if net.config.exit:
                losses = data.ends[rows] * bernoulli(leave, data.leave[rows])
            for at, kind in enumerate(kinds):
                form = bernoulli if kind is HeadKind.BINARY else exponential
                each = form(conditional[..., at], data.labels[rows][..., at])
                # Behind the end of a list there may be anything, infinities as well.
                known = data.known[rows][..., at] > 0
                losses = losses + torch.where(known, each, torch.zeros_like(each))
            loss = (weights[rows][:, None] * losses).sum() / weights[rows].sum()
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            adam.step()
            slower.step()
            size = float(weights[rows].sum())
            total, mass = total + float(loss.detach()) * size, mass + size
        mean = total / max(mass, 1e-12)
    return mean


def predicted(net: ListNet, value: ValueFunction, logs: LoggedLists) -> Float64:
    """U of logged lists by each member, from s_1 = 1 over the shown positions. [E, N]"""
    data = _Lists(net, logs)
    made = np.empty((net.config.members, len(logs)))
    for length in np.unique(logs.shown).tolist():
        same = np.flatnonzero(logs.shown == length)
        for rows in np.split(same, np.arange(_CHUNK, len(same), _CHUNK)):
            context = data.context[rows, :length].numpy().astype(np.float64)
            base = data.base[rows, :length].numpy().astype(np.float64)
            relations = data.relations(rows)[..., :length, :length].numpy().astype(np.float64)
            heads, leave = net(context, base, relations)
            values = np.stack([value(each) for each in heads])
            made[:, rows] = (survivals(hazard(leave)) * values).sum(2)
    return made


def realised_utility(value: ValueFunction, logs: LoggedLists) -> Float64:
    """What logged lists brought: the sum of V of the labels at positions that the user got to. [N]

    Raises:
        ConfigError: a label is missing at such a position, or its value is not finite.
    """
    seen = logs.observed
    labels = np.where(seen[..., None], logs.labels, 0.0).astype(np.float64)
    if np.isnan(labels).any():
        raise ConfigError("labels", "some are missing at positions that users got to")
    with np.errstate(all="ignore"):
        values = np.where(seen, value(np.ascontiguousarray(labels.transpose(2, 0, 1))), 0.0)
    if not np.isfinite(values).all():
        raise ConfigError("labels", "have no finite value under the value function")
    found: Float64 = values.sum(1)
    return found


def calibrated(net: ListNet, value: ValueFunction, logs: LoggedLists, alpha: float = 0.1) -> ListNet:
    """The net with residual quantiles, of lists of its fold that it has not learned from.

    Buckets are (shown length, generator of the list).

    Raises:
        ConfigError: as `Conformal.fit` and `realised_utility`.
    """
    residuals = predicted(net, value, logs).mean(0) - realised_utility(value, logs)
    buckets: dict[tuple[int, str], list[float]] = {}
    for at, name in enumerate(logs.generators):
        buckets.setdefault((int(logs.shown[at]), name), []).append(float(residuals[at]))
    fitted = Conformal.fit(buckets, alpha)
    rows = tuple(
        BucketQuantile(length=length, generator=name, quantile=found)
        for (length, name), found in sorted(fitted.quantiles.items())
    )
    config = msgspec.structs.replace(
        net.config, calibration=Calibration(alpha=alpha, pooled=fitted.pooled, buckets=rows)
    )
    return ListNet(config, net.tensors)


def _float(values: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
