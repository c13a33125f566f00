"""What the layers of every family share: one call a batch for surroundings, one call a layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor, nn

from relaygr.kernels.interface import Kernel, Plan, RowLayout
from relaygr.models.row import RowInput

Around = TypeVar("Around")


@dataclass(frozen=True, slots=True)
class Tail:
    """The candidates of a batch by themselves, behind their whole histories, whose K/V are in the stores.

    Attributes:
        inputs, plan: as of a batch in which every history is cached.
        source: where the candidates stand in the rows of the whole batch.
    """

    inputs: Sequence[RowInput]
    plan: Plan
    source: RowLayout

    def rows(self, x: Tensor) -> Tensor:
        """The candidates' rows out of x [rows, D], as `plan` lays them out."""
        out = x.new_zeros(self.plan.layout.rows, x.shape[1])
        for mine, theirs in zip(self.plan.layout.segments, self.source.segments, strict=True):
            out[mine.candidates] = x[theirs.candidates]
        return out


class Layer(nn.Module, ABC, Generic[Around]):
    """One layer; `Around` is what it needs to know of a batch beside the rows, made once for all layers."""

    @abstractmethod
    def forward(self, x: Tensor, plan: Plan, kernel: Kernel, around: Around) -> Tensor:
        """x [rows, D] -> [rows, D]; new history rows' K/V go to the plan's stores."""

    @abstractmethod
    def remember(self, x: Tensor, plan: Plan, kernel: Kernel, around: Around) -> None:
        """Only leave the K/V of the new history rows x [rows, D] in the plan's stores."""


class Stack(nn.ModuleList, ABC, Generic[Around]):
    """All layers of a ranker."""

    @abstractmethod
    def around(self, inputs: Sequence[RowInput], plan: Plan) -> Around:
        """What the layers need to know about a batch."""

    def run(
        self,
        x: Tensor,
        inputs: Sequence[RowInput],
        plan: Plan,
        kernel: Kernel,
        targets: bool,
        tail: Tail | None = None,
    ) -> Tensor:
        """x [rows, D] -> [rows, D]; without targets only K/V are left, and the result is x as it stands.

        With a tail the last layer computes its rows only, and the result is laid out as its plan says.
        """
        around = self.around(inputs, plan)
        *first, last = self
        for layer in first:
            x = layer(x, plan, kernel, around)
        assert isinstance(last, Layer)
        if targets and tail is None:
            out: Tensor = last(x, plan, kernel, around)
            return out
        # Nothing reads a history row's output of the last layer, only its K/V.
        last.remember(x, plan, kernel, around)
        if not targets or tail is None:
            return x
        scored: Tensor = last(tail.rows(x), tail.plan, kernel, self.around(tail.inputs, tail.plan))
        return scored
