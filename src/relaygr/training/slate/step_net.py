"""The step model in torch, with the arrays and the formulas of `listwise.step`, for training."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor, nn

from relaygr.listwise.arrays import Float32
from relaygr.listwise.features import FeatureTable
from relaygr.listwise.pool import HeadKind
from relaygr.listwise.step import MAX_HAZARD, StepConfig, StepModel


class StepNet(nn.Module):
    """Forward over rows; every parameter is one array of the step model, float32.

    Args:
        start: the arrays to begin with.
        frozen: features that heads must not use, as logs cannot tell them from something that is dropped
            at serving; the exit keeps those of groups that hold no other features.
    """

    def __init__(self, start: StepModel, frozen: Collection[str] = ()) -> None:
        super().__init__()
        self.config: StepConfig = start.config
        self.features: FeatureTable = start.features
        self._kinds = [each.kind for each in start.config.heads]
        self._names = list(start.tensors)
        for name, values in start.tensors.items():
            self.register_parameter(_key(name), nn.Parameter(torch.from_numpy(values.copy())))
        self._masks = dict[str, Tensor]()
        for group in start.config.groups:
            bad = [name in frozen for name in group.features]
            if all(bad):
                keep = torch.zeros(len(self._kinds) + 1, 1)
                keep[-1] = 1.0
                self._masks[f"groups.{group.name}.out.weight"] = keep
            elif any(bad):
                columns = torch.tensor([[0.0 if each else 1.0 for each in bad]])
                self._masks[f"groups.{group.name}.hidden.weight"] = columns
        if any(kind is not HeadKind.BINARY for kind in self._kinds):
            self._binary = torch.tensor([float(kind is HeadKind.BINARY) for kind in self._kinds])
        else:
            self._binary = torch.ones(len(self._kinds))

    def parameter(self, name: str) -> nn.Parameter:
        """What is trained for one array."""
        found: nn.Parameter = getattr(self, _key(name))
        return found

    def array(self, name: str) -> Tensor:
        """One array as the model uses it: what is frozen is 0, and regression heads have the scale 1."""
        values: Tensor = self.parameter(name)
        if name == "heads.scale":
            return values * self._binary + (1.0 - self._binary)
        mask = self._masks.get(name)
        return values if mask is None else values * mask

    def forward(self, context: Tensor, base: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Conditional outputs and exit logits of rows.

        Args:
            context: [R, F]; base: [R, K]; position: int64 [R].

        Returns:
            Logits of binary heads and logarithms of regression heads' values [R, K]; exit logits [R].
        """
        terms = torch.zeros(len(base), len(self._kinds) + 1, dtype=base.dtype)
        for group in self.config.groups:
            prefix = f"groups.{group.name}."
            inputs = context[:, self.features.rows(group.features)]
            hidden = inputs @ self._of(f"{prefix}hidden.weight", base).T + self._of(
                f"{prefix}hidden.bias", base
            )
            terms = terms + torch.tanh(hidden) @ self._of(f"{prefix}out.weight", base).T
        scale, bias = self._of("heads.scale", base), self._of("heads.bias", base)
        changes = terms[:, :-1] + bias
        columns = []
        for at, kind in enumerate(self._kinds):
            if kind is HeadKind.BINARY:
                columns.append(scale[at] * base[:, at] + changes[:, at])
            else:
                columns.append(torch.log(base[:, at].clamp_min(1e-12)) + changes[:, at])
        conditional = torch.stack(columns, dim=1)
        exits = self._of("exit.bias", base)
        leave = terms[:, -1] + exits[position.clamp_max(len(exits) - 1)]
        if self.config.exit_hidden:
            leave = leave + self._exit_term(conditional)
        return conditional, leave

    def _exit_term(self, conditional: Tensor) -> Tensor:
        inputs = [
            conditional[:, at] if kind is HeadKind.BINARY else torch.log1p(torch.exp(conditional[:, at]))
            for at, kind in enumerate(self._kinds)
        ]
        hidden = torch.stack(inputs, dim=1) @ self._of("exit.hidden.weight", conditional).T
        units = torch.tanh(hidden + self._of("exit.hidden.bias", conditional))
        return (units @ self._of("exit.out.weight", conditional).T)[:, 0]

    def _of(self, name: str, like: Tensor) -> Tensor:
        return self.array(name).to(like.dtype)

    def model(self) -> StepModel:
        """The arrays as they are now, as serving reads them."""
        tensors: dict[str, Float32] = {
            name: np.ascontiguousarray(self.array(name).detach().numpy(), dtype=np.float32)
            for name in self._names
        }
        return StepModel(self.config, tensors)


def hazard(logits: Tensor) -> Tensor:
    """As `listwise.step.hazard`."""
    return torch.sigmoid(logits).clamp_max(MAX_HAZARD)


def _key(name: str) -> str:
    return name.replace(".", "__")
