"""Training a step model by maximum likelihood on what users got to see.

Binary heads: Bernoulli. Regression heads: exponential, log y' + label / y', which takes zeros. Exit:
Bernoulli, at positions where it is known whether the user left. What stands behind an exit has no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Bool, Float64, Int64
from relaygr.listwise.features import FeatureTable, Kind
from relaygr.listwise.pool import HeadKind
from relaygr.listwise.step import StepConfig, StepModel
from relaygr.training.slate.logs import Exposures, LoggedLists
from relaygr.training.slate.losses import bernoulli, exponential
from relaygr.training.slate.rows import Rows, training_rows
from relaygr.training.slate.step_net import StepNet

_FEWEST_EPOCHS, _MOST_EPOCHS, _LISTS_IN_ALL = 15, 75, 45_000
_SHARED_RATE, _LAST_RATE = 10.0, 0.05  # of the learning rate; the last one is reached at the end
_SAME = 1e-9  # share of a feature's variance that cells leave over, below which they determine it


class StepTraining(Section, frozen=True, kw_only=True):
    """How a step model is trained.

    Attributes:
        epochs: of Adam; 0 for 45,000 / lists, within 15 and 75.
        learning_rate, batch_rows: of Adam.
        exit_logit: the exit bias to begin with.
        position_control: learn an offset of each head by (position, surface) that is dropped at serving.
        clip_weights: weight rows by min(1 / propensity, this); 0 gives all the weight 1.
        random_weight: of a randomly exposed item, in rows.
        allow_unexplored: train on logs without any propensity.
        seed: of first weights and of the order of rows.
    """

    PATH: ClassVar[str] = "slate"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "epochs": Range(0, 10_000),
        "learning_rate": Range(0, 10, open_low=True),
        "batch_rows": Range(1, 1_000_000),
        "exit_logit": Range(-20, 20),
        "clip_weights": Range(0, 1e9),
        "random_weight": Range(0, 1e6),
        "seed": Range(0, 2**32 - 1),
    }

    epochs: int = 0
    learning_rate: float = 3e-3
    batch_rows: int = 512
    exit_logit: float = -2.0
    position_control: bool = False
    clip_weights: float = 0.0
    random_weight: float = 1.0
    allow_unexplored: bool = False
    seed: int = 0

    def epochs_for(self, lists: int) -> int:
        """Passes over the rows of so many lists."""
        return self.epochs or min(max(round(_LISTS_IN_ALL / lists), _FEWEST_EPOCHS), _MOST_EPOCHS)


@dataclass(frozen=True, slots=True)
class Trained:
    """A step model and what its training can say.

    Attributes:
        position: float64 [surfaces, positions, K], offsets dropped at serving, 0 at the first position; None
            without position control.
        unidentified: features that the logs cannot tell from position offsets; heads do not use them.
        rows: consumed positions; loss: mean negative log-likelihood of the last epoch.
    """

    model: StepModel
    position: Float64 | None
    unidentified: tuple[str, ...]
    rows: int
    loss: float


def train_step(
    config: StepConfig,
    logs: LoggedLists,
    training: StepTraining | None = None,
    exposures: Exposures | None = None,
    list_weights: Float64 | None = None,
) -> Trained:
    """Fit a step model to logged lists.

    Args:
        exposures: single items that were shown at random; they calibrate items, in an empty context.
        list_weights: [N], for resampled users.

    Raises:
        ConfigError: heads differ; the logs lack what features need; nothing was explored.
    """
    training = training or StepTraining()
    start = StepModel.zero(config, training.exit_logit, training.seed)
    if start.heads != logs.heads:
        raise ConfigError("heads", f"the step model's {start.heads} are not the logs' {logs.heads}")
    if not logs.explored.any() and not training.allow_unexplored:
        raise ConfigError(
            "log_propensity",
            "no list was explored, so that effects of context, of position and of how lists were chosen "
            "cannot be told apart; log some lists with propensities, or set allow_unexplored",
        )
    rows = training_rows(start.features, logs, config.watch_head, training.clip_weights or None)
    unidentified, constant = tuple[str, ...](), tuple[str, ...]()
    if training.position_control:
        unidentified, constant = position_bound(start.features, rows)
    data = _Data(rows, list_weights, exposures, len(start.features), training.random_weight)
    net = StepNet(start, (*unidentified, *constant) if unidentified else ())
    positions = _Positions(rows, len(config.heads)) if training.position_control else None
    loss = _descend(net, positions, data, training, training.epochs_for(len(logs)))
    offsets = None if positions is None else positions.offsets().detach().numpy().astype(np.float64)
    return Trained(net.model(), offsets, unidentified, len(rows), loss)


def train_ensemble(
    config: StepConfig, logs: LoggedLists, members: int = 5, training: StepTraining | None = None
) -> list[Trained]:
    """Models of different first weights, each on a bootstrap of the users."""
    training = training or StepTraining()
    made = []
    _, owner = np.unique(logs.users, return_inverse=True)
    for member in range(members):
        random = np.random.default_rng((training.seed, member))
        users = int(owner.max()) + 1
        counts = np.bincount(random.integers(0, users, users), minlength=users)
        settings = _with_seed(training, training.seed * 1000 + member)
        made.append(train_step(config, logs, settings, list_weights=counts[owner].astype(np.float64)))
    return made


def position_bound(features: FeatureTable, rows: Rows) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Features of place that (position, surface) determines in these rows, and those that never change.

    The former share their effect with offsets of positions, and logs cannot tell which of the two it is.
    """
    _, cells = np.unique(np.stack([rows.position, rows.surface]), axis=1, return_inverse=True)
    cells = cells.reshape(-1)
    bound, constant = list[str](), list[str]()
    for at, name in enumerate(features.names):
        if features.features[at].kind not in (Kind.POSITION, Kind.SESSION, Kind.PAGE, Kind.SLOT):
            continue
        values = rows.context[:, at]
        means = np.bincount(cells, values) / np.maximum(np.bincount(cells), 1)
        left = float(((values - means[cells]) ** 2).sum())
        total = float(((values - values.mean()) ** 2).sum())
        if total == 0:
            constant.append(name)
        elif left <= _SAME * total:
            bound.append(name)
    return tuple(bound), tuple(constant)


class _Positions(torch.nn.Module):
    """Offsets h of heads by (surface, position); those of the first position are 0."""

    def __init__(self, rows: Rows, heads: int) -> None:
        super().__init__()
        self.surfaces, index = np.unique(rows.surface, return_inverse=True)
        self.index = torch.from_numpy(index.astype(np.int64))
        self.position = torch.from_numpy(rows.position.astype(np.int64))
        length = int(rows.position.max())
        self.free = torch.nn.Parameter(torch.zeros(len(self.surfaces), length, heads))

    def offsets(self) -> Tensor:
        """[surfaces, positions, K]"""
        return torch.cat(
            [torch.zeros_like(self.free[:, :1]) if self.free.shape[1] else self._none(), self.free], 1
        )

    def _none(self) -> Tensor:
        return torch.zeros(len(self.surfaces), 1, self.free.shape[2])

    def of(self, rows: Tensor) -> Tensor:
        """[rows, K]; rows behind the logged ones were exposed alone, at the first position."""
        inside = rows < len(self.index)
        at = torch.where(inside, rows, torch.zeros_like(rows))
        found: Tensor = self.offsets()[self.index[at], self.position[at]]
        return found * inside[:, None]


class _Data:
    """Rows as tensors, those of random exposures last."""

    def __init__(
        self, rows: Rows, lists: Float64 | None, exposures: Exposures | None, features: int, random: float
    ) -> None:
        weight = rows.weight if lists is None else rows.weight * lists[rows.lists]
        context, base, labels = rows.context, rows.base, rows.labels
        leave, position = rows.leave, rows.position
        if exposures is not None and random > 0:
            extra = len(exposures.outputs)
            context = np.concatenate([context, np.zeros((extra, features))])
            base = np.concatenate([base, exposures.outputs.astype(np.float64)])
            labels = np.concatenate([labels, exposures.labels.astype(np.float64)])
            leave = np.concatenate([leave, np.full(extra, np.nan)])
            weight = np.concatenate([weight, np.full(extra, random)])
            position = np.concatenate([position, np.zeros(extra, dtype=np.int64)])
        self.context, self.base = _float(context), _float(base)
        self.known, self.labels = _float(np.isfinite(labels)), _float(np.nan_to_num(labels))
        self.ends, self.leave = _float(np.isfinite(leave)), _float(np.nan_to_num(leave))
        self.weight = _float(weight)
        self.position = torch.from_numpy(position.astype(np.int64))

    def __len__(self) -> int:
        return len(self.weight)


def _descend(
    net: StepNet, positions: _Positions | None, data: _Data, training: StepTraining, epochs: int
) -> float:
    parameters = [*net.parameters(), *([] if positions is None else positions.parameters())]
    # Single numbers that all rows share begin far from where they belong; weights of nets do not.
    shared = [each for each in parameters if id(each) in _shared(net, positions)]
    others = [each for each in parameters if id(each) not in _shared(net, positions)]
    rate, steps = training.learning_rate, epochs * -(-len(data) // training.batch_rows)
    adam = torch.optim.Adam([{"params": others, "lr": rate}, {"params": shared, "lr": _SHARED_RATE * rate}])
    slower = torch.optim.lr_scheduler.LinearLR(adam, 1.0, _LAST_RATE, steps)
    order = torch.Generator().manual_seed(training.seed)
    kinds = [each.kind for each in net.config.heads]
    mean = 0.0
    for _ in range(epochs):
        total = weights = 0.0
        for rows in torch.split(torch.randperm(len(data), generator=order), training.batch_rows):
            weight = data.weight[rows]
            mass = float(weight.sum())
            if not mass:
                continue
            conditional, leave = net(data.context[rows], data.base[rows], data.position[rows])
            if positions is not None:
                conditional = conditional + positions.of(rows)
            losses = data.ends[rows] * bernoulli(leave, data.leave[rows]) if net.config.exit else 0.0
            for at, kind in enumerate(kinds):
                form = bernoulli if kind is HeadKind.BINARY else exponential
                losses = losses + data.known[rows, at] * form(conditional[:, at], data.labels[rows, at])
            loss = (weight * losses).sum() / mass
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            slower.step()
            total, weights = total + float(loss.detach()) * mass, weights + mass
        mean = total / max(weights, 1e-12)
    return mean


def _shared(net: StepNet, positions: _Positions | None) -> set[int]:
    found = {id(net.parameter(name)) for name in ("heads.scale", "heads.bias", "exit.bias")}
    return found if positions is None else found | {id(positions.free)}


def _float(values: Float64 | Bool | Int64) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _with_seed(training: StepTraining, seed: int) -> StepTraining:
    return StepTraining(
        **{name: getattr(training, name) for name in training.__struct_fields__ if name != "seed"}, seed=seed
    )
