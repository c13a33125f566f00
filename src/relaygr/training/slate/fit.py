"""Training a step model by maximum likelihood on what users got to see.

Binary heads: Bernoulli. Regression heads: exponential, log y' + label / y', which takes zeros. Exit:
Bernoulli, at positions where it is known whether the user left. What stands behind an exit has no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np
import torch

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64
from relaygr.listwise.features import FeatureTable, Kind
from relaygr.listwise.step import StepConfig, StepModel
from relaygr.training.slate.descent import Data, Likelihood, Positions, adam, lbfgs
from relaygr.training.slate.learnable import check_learnable
from relaygr.training.slate.logs import Exposures, LoggedLists
from relaygr.training.slate.rows import Rows, training_rows
from relaygr.training.slate.step_net import StepNet

_FEWEST_EPOCHS, _MOST_EPOCHS, _LISTS_IN_ALL = 15, 75, 45_000
_ITERATIONS = 150
_SAME = 1e-9  # share of a feature's variance that cells leave over, below which they determine it


class Solver(StrEnum):
    """How the likelihood is maximised.

    L-BFGS reads all rows at every step, in float64, and converges; Adam takes batches of them, for logs that
    are too large for that, and stops wherever it is.
    """

    LBFGS = "lbfgs"
    ADAM = "adam"


class StepTraining(Section, frozen=True, kw_only=True):
    """How a step model is trained.

    Attributes:
        epochs: steps of L-BFGS, 0 for 150; or passes of Adam, 0 for 45,000 / lists, within 15 and 75.
        ridge: penalty on the squared weights of nets, in rows; 0 for none.
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
        "ridge": Range(0, 1e9),
        "learning_rate": Range(0, 10, open_low=True),
        "batch_rows": Range(1, 1_000_000),
        "exit_logit": Range(-20, 20),
        "clip_weights": Range(0, 1e9),
        "random_weight": Range(0, 1e6),
        "seed": Range(0, 2**32 - 1),
    }

    solver: Solver = Solver.LBFGS
    epochs: int = 0
    ridge: float = 1.0
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
        if self.solver is Solver.LBFGS:
            return self.epochs or _ITERATIONS
        return self.epochs or min(max(round(_LISTS_IN_ALL / lists), _FEWEST_EPOCHS), _MOST_EPOCHS)


@dataclass(frozen=True, slots=True)
class Trained:
    """A step model and what its training can say.

    Attributes:
        position: float64 [surfaces, positions, K], offsets dropped at serving, 0 at the first position; None
            without position control.
        unidentified: features that the logs cannot tell from position offsets; heads do not use them.
        rows: consumed positions; loss: their mean negative log-likelihood, by Adam that of the last epoch.
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
        ConfigError: heads differ; the logs lack what features need; nothing was explored or consumed; the fit
            has no finite loss.
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
    check_learnable(logs)
    rows = training_rows(start.features, logs, config.watch_head, training.clip_weights or None)
    unidentified, constant = tuple[str, ...](), tuple[str, ...]()
    if training.position_control:
        unidentified, constant = position_bound(start.features, rows)
    exact = training.solver is Solver.LBFGS
    dtype = torch.float64 if exact else torch.float32
    data = Data(rows, list_weights, exposures, len(start.features), training.random_weight, dtype)
    net = StepNet(start, (*unidentified, *constant) if unidentified else ()).to(dtype)
    positions = Positions(rows, len(config.heads)).to(dtype) if training.position_control else None
    likelihood, epochs = Likelihood(net, positions, data, training.ridge), training.epochs_for(len(logs))
    if exact:
        loss = lbfgs(likelihood, epochs)
    else:
        loss = adam(likelihood, epochs, training.learning_rate, training.batch_rows, training.seed)
    if not np.isfinite(loss):
        raise ConfigError("outputs", f"of the ranker or labels are too large to fit: the loss is {loss}")
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


def _with_seed(training: StepTraining, seed: int) -> StepTraining:
    return StepTraining(
        **{name: getattr(training, name) for name in training.__struct_fields__ if name != "seed"}, seed=seed
    )
