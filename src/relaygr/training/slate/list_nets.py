"""One member of the list net in torch, with the arrays and the formulas of `listwise.list_net`."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from relaygr.listwise.arrays import Float32
from relaygr.listwise.list_net import Arch, ListNet
from relaygr.listwise.pool import HeadKind
from relaygr.training.slate.array_module import ArrayModule


class ListMember(ArrayModule):
    """Forward over lists.

    Args:
        start: the net to begin with.
        member: which of its members.
    """

    def __init__(self, start: ListNet, member: int) -> None:
        super().__init__({name: values[member] for name, values in start.tensors.items()})
        self.config = start.config
        self._binary = torch.tensor([each.kind is HeadKind.BINARY for each in start.config.heads])

    def forward(
        self, context: Tensor, base: Tensor, relations: Tensor, there: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Conditional outputs and exit logits.

        Args:
            context: [N, L, F]; base: [N, L, K]; relations: [N, R, L, L].
            there: bool [N, L], positions that were filled; others are as if they were not there.

        Returns:
            Logits of binary heads and logarithms of regression heads' values [N, L, K]; exit logits [N, L].
        """
        x = torch.cat([torch.where(self._binary, base, torch.log1p(base.abs())), context], 2)
        if self.config.arch is Arch.ATTENTION:
            h = torch.tanh(x @ self.of("in.weight").T + self.of("in.bias"))
            for block in range(self.config.blocks):
                h = self._block(f"blocks.{block}.", h, relations, there)
        else:
            h = self._lstm("forward", x, there)
            if not self.config.causal:
                h = torch.cat([h, self._lstm("backward", x.flip(1), there.flip(1)).flip(1)], 2)
        g = h @ self.of("out.weight").T
        K = len(self._binary)
        changed = self.of("bias") + g[..., :K]
        logs = torch.log(base.clamp_min(1e-12)) + changed
        return torch.where(self._binary, self.of("scale") * base + changed, logs), self.of("exit") + g[..., K]

    def _block(self, prefix: str, h: Tensor, relations: Tensor, there: Tensor) -> Tensor:
        N, L, D = h.shape
        H = self.config.attention_heads
        q, k, v = (
            (h @ self.of(f"{prefix}{name}.weight").T).view(N, L, H, D // H).transpose(1, 2) for name in "qkv"
        )
        logits = q @ k.transpose(2, 3) / math.sqrt(D // H)
        logits = logits + torch.einsum("hr,nrij->nhij", self.of(f"{prefix}relation"), relations)
        every = torch.ones(L, L, dtype=torch.bool)
        seen = every.tril(-1) if self.config.causal else ~torch.eye(L, dtype=torch.bool)
        logits = logits.masked_fill(~(seen & there[:, None, None]), -torch.inf)
        none = self.of(f"{prefix}none")[:, None, None].expand(N, H, L, 1)
        weights = torch.cat([none, logits], 3).softmax(3)[..., 1:]
        mixed = (weights @ v).transpose(1, 2).reshape(N, L, D)
        h = h + mixed @ self.of(f"{prefix}o.weight").T
        up = torch.tanh(h @ self.of(f"{prefix}up.weight").T + self.of(f"{prefix}up.bias"))
        return h + up @ self.of(f"{prefix}down.weight").T

    def _lstm(self, name: str, x: Tensor, there: Tensor) -> Tensor:
        P, D = x.shape[2], self.config.width
        weight = self.of(f"{name}.weight")
        inner = x @ weight[:, :P].T + self.of(f"{name}.bias")
        outer = weight[:, P:].T
        hidden = cell = torch.zeros(len(x), D, dtype=x.dtype)
        states = []
        for t in range(x.shape[1]):
            enter, forget, fresh, leave = (inner[:, t] + hidden @ outer).chunk(4, 1)
            here = there[:, t : t + 1]
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(fresh)
            cell = cell * here
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
            states.append(hidden)
        return torch.stack(states, 1)


def joined(members: list[ListMember], start: ListNet) -> ListNet:
    """Members as one net."""
    arrays = [member.arrays() for member in members]
    tensors: dict[str, Float32] = {name: np.stack([each[name] for each in arrays]) for name in arrays[0]}
    return ListNet(start.config, tensors)
