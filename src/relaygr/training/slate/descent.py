"""The likelihood of training rows and its minimisers: L-BFGS over all rows, Adam over batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relaygr.listwise.arrays import Float64
from relaygr.listwise.pool import HeadKind
from relaygr.training.slate.logs import Exposures
from relaygr.training.slate.losses import bernoulli, exponential
from relaygr.training.slate.rows import Rows
from relaygr.training.slate.step_net import StepNet

_SHARED_RATE, _LAST_RATE = 10.0, 0.05  # of Adam's learning rate; the last one is reached at the end
_HISTORY = 20  # pairs of steps and gradients that L-BFGS keeps
_CHUNK = 32_768  # rows whose activations are held at once
_FLAT = 1e-7  # largest part of the gradient, of the mean loss, at which L-BFGS stops


class Positions(nn.Module):
    """Offsets h of heads by (surface, position); those of the first position are 0."""

    def __init__(self, rows: Rows, heads: int) -> None:
        super().__init__()
        self.surfaces, index = np.unique(rows.surface, return_inverse=True)
        self.index = torch.from_numpy(index.astype(np.int64))
        self.position = torch.from_numpy(rows.position.astype(np.int64))
        length = int(rows.position.max())
        self.free = nn.Parameter(torch.zeros(len(self.surfaces), length, heads))

    def offsets(self) -> Tensor:
        """[surfaces, positions, K]"""
        first = torch.zeros(len(self.surfaces), 1, self.free.shape[2], dtype=self.free.dtype)
        return torch.cat([first, self.free], 1)

    def of(self, rows: Tensor) -> Tensor:
        """[rows, K]; rows behind the logged ones were exposed alone, at the first position."""
        inside = rows < len(self.index)
        at = torch.where(inside, rows, torch.zeros_like(rows))
        found: Tensor = self.offsets()[self.index[at], self.position[at]]
        return found * inside[:, None]


class Data:
    """Rows as tensors, those of random exposures last."""

    def __init__(
        self,
        rows: Rows,
        lists: Float64 | None,
        exposures: Exposures | None,
        features: int,
        random: float,
        dtype: torch.dtype,
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

        def tensor(values: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64)).to(dtype)

        self.context, self.base = tensor(context), tensor(base)
        self.known, self.labels = tensor(np.isfinite(labels)), tensor(np.nan_to_num(labels))
        self.ends, self.leave = tensor(np.isfinite(leave)), tensor(np.nan_to_num(leave))
        self.weight = tensor(weight)
        self.position = torch.from_numpy(position.astype(np.int64))

    def __len__(self) -> int:
        return len(self.weight)


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Negative log-likelihood of rows, and the parameters it depends on.

    Attributes:
        ridge: penalty on the squared weights of nets, in rows.
    """

    net: StepNet
    positions: Positions | None
    data: Data
    ridge: float

    def loss(self, rows: Tensor) -> Tensor:
        """Weighted sum over rows int64 [n]; their order does not matter."""
        net, data = self.net, self.data
        conditional, leave = net(data.context[rows], data.base[rows], data.position[rows])
        if self.positions is not None:
            conditional = conditional + self.positions.of(rows)
        losses = data.ends[rows] * bernoulli(leave, data.leave[rows]) if net.config.exit else 0.0
        for at, kind in enumerate(each.kind for each in net.config.heads):
            form = bernoulli if kind is HeadKind.BINARY else exponential
            losses = losses + data.known[rows, at] * form(conditional[:, at], data.labels[rows, at])
        total: Tensor = (data.weight[rows] * losses).sum()
        return total

    def penalty(self) -> Tensor:
        squares = [(each**2).sum() for each in self.weights()]
        return self.ridge * torch.stack(squares).sum()

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from self.net.parameters()
        if self.positions is not None:
            yield from self.positions.parameters()

    def shared(self) -> list[nn.Parameter]:
        """Single numbers that all rows share, which begin far from where they belong."""
        own = [self.net.parameter(name) for name in ("heads.scale", "heads.bias", "exit.bias")]
        return own if self.positions is None else [*own, self.positions.free]

    def weights(self) -> list[nn.Parameter]:
        """Those of nets."""
        shared = {id(each) for each in self.shared()}
        return [each for each in self.parameters() if id(each) not in shared]


def lbfgs(likelihood: Likelihood, iterations: int) -> float:
    """Minimise loss + penalty over all rows; returns the mean loss. Deterministic."""
    mass = float(likelihood.data.weight.sum())
    chunks = torch.split(torch.arange(len(likelihood.data)), _CHUNK)
    search = torch.optim.LBFGS(
        likelihood.parameters(),
        max_iter=iterations,
        history_size=_HISTORY,
        tolerance_grad=_FLAT,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def evaluate() -> float:
        search.zero_grad()
        penalty = likelihood.penalty() / mass
        penalty.backward()  # type: ignore[no-untyped-call]
        total = float(penalty.detach())
        for rows in chunks:
            part = likelihood.loss(rows) / mass
            part.backward()  # type: ignore[no-untyped-call]
            total += float(part.detach())
        return total

    step: Callable[[Callable[[], float]], Any] = search.step
    step(evaluate)
    with torch.no_grad():
        return sum(float(likelihood.loss(rows)) for rows in chunks) / mass


def adam(likelihood: Likelihood, epochs: int, rate: float, batch: int, seed: int) -> float:
    """Minimise loss + penalty in passes over the rows; returns the mean loss of the last one."""
    data, shared = likelihood.data, likelihood.shared()
    mass = float(data.weight.sum())
    groups = [
        {"params": likelihood.weights(), "lr": rate},
        {"params": shared, "lr": _SHARED_RATE * rate},
    ]
    descent = torch.optim.Adam(groups)
    slower = torch.optim.lr_scheduler.LinearLR(descent, 1.0, _LAST_RATE, epochs * -(-len(data) // batch))
    order = torch.Generator().manual_seed(seed)
    mean = 0.0
    for _ in range(epochs):
        total = weights = 0.0
        for rows in torch.split(torch.randperm(len(data), generator=order), batch):
            weight = float(data.weight[rows].sum())
            if not weight:
                continue
            loss = likelihood.loss(rows) / weight
            descent.zero_grad()
            (loss + likelihood.penalty() / mass).backward()  # type: ignore[no-untyped-call]
            descent.step()
            slower.step()
            total, weights = total + float(loss.detach()) * weight, weights + weight
        mean = total / max(weights, 1e-12)
    return mean
