"""Baselines of linear-attention beams: a state for every beam, and beams that replay what was fed to them.

Both stand for what decoders without shared records do. They are kept to be compared with, in results, bytes
and time, and are as fast as plain operators make them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from relaygr.kernels.recurrent import RecurrentSpec, check_tokens

REPLAY_BYTES = 64 << 20  # of the states that `ReplayedBeams` builds at a time


class MaterialisedBeams:
    """One recurrent state and one window of convolution rows a beam, gathered by parent at each fork.

    Two buffers of states take turns and are kept for the next request, so that no run pays for fresh memory.

    Changes: `fork` copies states and rows; `step` and `convolve` go on with them; `restart` begins anew.
    Raises: ValueError for shapes that do not fit; RuntimeError for a step before the first fork.

    Args:
        state: [Hv, dk, dv] behind the prompt.
        rows: [taps - 1, C] behind the prompt, if the layer has a convolution.

    Attributes:
        moved_bytes: states and rows written by forks so far.
    """

    def __init__(self, spec: RecurrentSpec, state: Tensor, rows: Tensor | None = None) -> None:
        self.spec = spec
        self._buffers: list[Tensor] = [state.new_empty(0), state.new_empty(0)]
        self.restart(state, rows)

    def restart(self, state: Tensor, rows: Tensor | None = None) -> None:
        """Begin again behind another prompt, with one root."""
        if state.shape != self.spec.state_shape:
            raise ValueError(f"state: {tuple(state.shape)}: expected {self.spec.state_shape}")
        self.moved_bytes, self._forked = 0, False
        self._states = state[None]  # [W, Hv, dk, dv]
        self._rows = None if rows is None else rows[None]  # [W, taps - 1, C]

    @property
    def state_bytes(self) -> int:
        return self._states.nbytes

    @property
    def row_bytes(self) -> int:
        return 0 if self._rows is None else self._rows.nbytes

    @property
    def states(self) -> Tensor:
        """[W, Hv, dk, dv]."""
        return self._states

    def fork(self, parents: Tensor) -> None:
        """New beam b continues old beam parents[b]; int64 [W']. The first fork is from the root, 0."""
        self._states = torch.index_select(self._states, 0, parents, out=self._buffer(len(parents)))
        self._forked = True
        if self._rows is not None:
            self._rows = self._rows.index_select(0, parents)
        self.moved_bytes += self.state_bytes + self.row_bytes

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [W, C] behind each beam's window -> y [W, C] in the dtype of weight [C, taps]."""
        if self._rows is None or x.shape != (self._rows.shape[0], self._rows.shape[2]):
            raise ValueError(f"x: {tuple(x.shape)} does not fit the rows of {self._states.shape[0]} beams")
        dtype, steps = weight.dtype, weight.t().contiguous()
        y = x.to(dtype) * steps[-1]
        for j in range(len(steps) - 1):
            y.addcmul_(self._rows[:, j].to(dtype), steps[j])
        self._rows = torch.cat((self._rows[:, 1:], x[:, None]), dim=1)
        return y if bias is None else y.add_(bias)

    def step(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor | None) -> Tensor:
        """One token of each beam, arguments as of `RecurrentKernel.beams` -> out [W, Hv, dv]."""
        check_tokens(self.spec, q, k, v, log_decay, beta, self._states[0])
        if q.shape[0] != self._states.shape[0]:
            raise ValueError(f"q: {q.shape[0]} rows, {self._states.shape[0]} beams")
        if not self._forked:
            raise RuntimeError("the root is the prompt's own state: fork it before a step")
        return advance(self.spec, self._states, q, k, v, log_decay, beta)

    def _buffer(self, width: int) -> Tensor:
        """[W, Hv, dk, dv], not the one in use."""
        size = width * math.prod(self.spec.state_shape)
        old, used = self._buffers
        if old.numel() < size or old.dtype != self._states.dtype:
            old = self._states.new_empty(size)
        self._buffers = [used, old]
        return old[:size].view(width, *self.spec.state_shape)


class ReplayedBeams:
    """No state a beam: each step runs the recurrence over all tokens of each beam's path again.

    Tokens are kept once, step-major, and found by the ancestor index.

    Args:
        state: [Hv, dk, dv] behind the prompt.
    """

    def __init__(self, spec: RecurrentSpec, state: Tensor) -> None:
        if state.shape != spec.state_shape:
            raise ValueError(f"state: {tuple(state.shape)}: expected {spec.state_shape}")
        self.spec = spec
        self._state = state
        self._fed: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]] = []

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor | None, anc: Tensor
    ) -> Tensor:
        """One token of each beam, arguments as of `RecurrentKernel.beams` -> out [W, Hv, dv]."""
        check_tokens(self.spec, q, k, v, log_decay, beta, self._state)
        if anc.shape != (q.shape[0], len(self._fed) + 1):
            raise ValueError(f"anc: {tuple(anc.shape)}: expected {(q.shape[0], len(self._fed) + 1)}")
        self._fed.append((q, k, v, log_decay, beta))
        out = self._state.new_empty(v.shape)
        size = max(REPLAY_BYTES // self._state.nbytes, 1)
        for start in range(0, q.shape[0], size):
            slots = anc[start : start + size]
            states = self._state.expand(slots.shape[0], -1, -1, -1).contiguous()
            for depth, fed in enumerate(self._fed):
                at = slots[:, depth]
                constant = self.spec.constant_decay
                one_q, one_k, one_v = (x.index_select(0, at) for x in fed[:3])
                decay = fed[3] if constant else fed[3].index_select(0, at)
                strength = None if fed[4] is None else fed[4].index_select(0, at)
                read = advance(self.spec, states, one_q, one_k, one_v, decay, strength)
            out[start : start + size] = read
        return out


def advance(
    spec: RecurrentSpec,
    states: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor | None,
) -> Tensor:
    """One token of each of W recurrences; `states` [W, Hv, dk, dv] is changed in place -> out [W, Hv, dv]."""
    dtype, group = states.dtype, spec.value_heads // spec.key_heads
    flat = states.view(-1, spec.key_dim, spec.value_dim)
    keys, queries = (x.to(dtype).repeat_interleave(group, dim=1).flatten(0, 1) for x in (k, q))
    factor = log_decay.to(dtype).exp()
    if spec.vector:
        factor = factor.repeat_interleave(spec.value_heads // factor.shape[1], dim=1)
        states.mul_(factor[..., None])
    else:
        states.mul_(factor[..., None, None])
    update = v.to(dtype).flatten(0, 1)[:, None]  # [W * Hv, 1, dv]
    if beta is not None:
        known = torch.bmm(keys[:, None], flat)
        update = (update - known).mul_(beta.to(dtype).reshape(-1, 1, 1))
    flat.baddbmm_(keys[:, :, None], update)
    return torch.bmm(queries[:, None], flat).view(v.shape)
