"""Random tokens, random fork trees, and what a full state for every beam makes of them in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.generation.ancestors import Ancestors
from relaygr.kernels.recurrent import RecurrentKernel, RecurrentSpec
from relaygr.memory.records import BeamRecords, RecordPool
from relaygr.memory.recurrent import RecurrentLayout

F64, F32 = torch.float64, torch.float32
SPECS = {
    "decayed": RecurrentSpec("decayed", 2, 4, 12, 8),
    "decayed-constant": RecurrentSpec("decayed", 3, 3, 12, 8, constant_decay=True),
    "gated": RecurrentSpec("gated", 2, 4, 12, 8),
    "gated-key-heads": RecurrentSpec("gated", 2, 4, 12, 8, decay_heads=2),
    "delta": RecurrentSpec("delta", 2, 4, 12, 8),
    "delta-constant": RecurrentSpec("delta", 2, 2, 12, 8, constant_decay=True),
    "kda": RecurrentSpec("kda", 2, 4, 12, 8),
    "kda-key-heads": RecurrentSpec("kda", 2, 4, 12, 8, decay_heads=2),
}
DECAYS = ("weak", "strong", "mixed")


@dataclass(frozen=True)
class Tokens:
    """Inputs of some tokens, without the state."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor | None

    def to(self, dtype: torch.dtype) -> Tokens:
        return Tokens(*(None if x is None else x.to(dtype) for x in self.all))

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        return self.q, self.k, self.v, self.log_decay, self.beta

    def pick(self, spec: RecurrentSpec, rows: object) -> Tokens:
        decay = self.log_decay if spec.constant_decay else self.log_decay[rows]
        beta = None if self.beta is None else self.beta[rows]
        return Tokens(self.q[rows], self.k[rows], self.v[rows], decay, beta)


def draw_tokens(spec: RecurrentSpec, count: int, g: torch.Generator, decay: str = "weak") -> Tokens:
    """Rounded to fp32, so that both precisions see the same numbers."""

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=g, dtype=F64)

    q, k = (F.normalize(normal(count, spec.key_heads, spec.key_dim), dim=-1) for _ in range(2))
    shape = (spec.value_heads,) if spec.constant_decay else (count, *spec.decay_shape)
    log_decay = -torch.rand(shape, generator=g, dtype=F64) / 4
    if decay == "strong":
        log_decay.fill_(-40.0)
    elif decay == "mixed":
        log_decay[torch.rand(shape, generator=g) < 0.5] = -40.0
    beta = torch.rand(count, spec.value_heads, generator=g, dtype=F64) if spec.delta else None
    v = normal(count, spec.value_heads, spec.value_dim)
    return Tokens(q, k, v, log_decay, beta).to(F32).to(F64)


def draw_state(spec: RecurrentSpec, g: torch.Generator) -> Tensor:
    return torch.randn(spec.state_shape, generator=g, dtype=F64).float().double()


def transition(spec: RecurrentSpec, tokens: Tokens, i: int, state: Tensor) -> Tensor:
    """S = (I - beta k k^T) Diag(a) S + beta k v^T, written out with matrices; no correction for non-delta."""
    group = spec.value_heads // spec.key_heads
    new = []
    for h in range(spec.value_heads):
        key, value = tokens.k[i, h // group], tokens.v[i, h]
        decay = tokens.log_decay if spec.constant_decay else tokens.log_decay[i]
        ln = decay[h * decay.shape[0] // spec.value_heads]
        matrix, strength = torch.eye(spec.key_dim, dtype=F64), 1.0
        if tokens.beta is not None:
            strength = float(tokens.beta[i, h])
            matrix = matrix - strength * torch.outer(key, key)
        new.append(
            matrix @ torch.diag(ln.exp().expand(spec.key_dim)) @ state[h] + strength * torch.outer(key, value)
        )
    return torch.stack(new)


def read(spec: RecurrentSpec, tokens: Tokens, i: int, state: Tensor) -> Tensor:
    group = spec.value_heads // spec.key_heads
    return torch.stack([state[h].T @ tokens.q[i, h // group] for h in range(spec.value_heads)])


def sequential(spec: RecurrentSpec, tokens: Tokens, state: Tensor) -> tuple[Tensor, Tensor]:
    """(out [n, Hv, dv], state) in float64."""
    outs = []
    for i in range(tokens.q.shape[0]):
        state = transition(spec, tokens, i, state)
        outs.append(read(spec, tokens, i, state))
    return torch.stack(outs) if outs else torch.zeros(tokens.v.shape, dtype=F64), state


def error(got: Tensor, want: Tensor, floor: float = 0.0) -> float:
    """Largest difference, relative to the largest number wanted, or to `floor` where all of them cancel."""
    assert got.shape == want.shape
    assert torch.isfinite(got).all()
    if not want.numel():
        return 0.0
    scale = max(float(want.double().abs().max()), floor)
    return float((got.double() - want.double()).abs().max()) / scale


class Forks:
    """A search of some rounds: beams of each round, their parents, and a token for each."""

    def __init__(self, spec: RecurrentSpec, widths: tuple[int, ...], seed: int, decay: str = "weak") -> None:
        g = torch.Generator().manual_seed(seed)
        self.spec, self.widths = spec, widths
        self.state = draw_state(spec, g)
        self.tokens = []
        constant = None
        for width in widths:
            one = draw_tokens(spec, width, g, decay)
            if spec.constant_decay:
                constant = one.log_decay if constant is None else constant
                one = Tokens(one.q, one.k, one.v, constant, one.beta)
            self.tokens.append(one)
        before = (1, *widths[:-1])
        self.parents = [
            torch.randint(0, old, (new,), generator=g) for old, new in zip(before, widths, strict=True)
        ]

    def want(self) -> list[Tensor]:
        """What every beam reads at each depth, in float64, from a state of its own."""
        states, outs = [self.state], []
        for tokens, parents in zip(self.tokens, self.parents, strict=True):
            states = [transition(self.spec, tokens, b, states[p]) for b, p in enumerate(parents.tolist())]
            outs.append(torch.stack([read(self.spec, tokens, b, state) for b, state in enumerate(states)]))
        return outs

    def pool(self, dtype: torch.dtype, key_dtype: torch.dtype | None = None) -> RecordPool:
        spec = self.spec
        layout = RecurrentLayout(
            layers=1,
            key_heads=spec.key_heads,
            value_heads=spec.value_heads,
            key_dim=spec.key_dim,
            value_dim=spec.value_dim,
            decay_shape=spec.decay_shape,
            key_dtype=key_dtype or dtype,
            state_dtype=dtype,
        )
        return RecordPool(layout, layout.slot_bytes.total * sum(self.widths))

    def search(self, dtype: torch.dtype, key_dtype: torch.dtype | None = None) -> Search:
        return Search(self, dtype, self.pool(dtype, key_dtype))


class Search:
    """Runs the rounds of some forks one by one on a kernel; slots start out as NaN."""

    def __init__(self, forks: Forks, dtype: torch.dtype, pool: RecordPool) -> None:
        self.forks, self.dtype = forks, dtype
        records = pool.reserve(forks.widths)
        assert records is not None
        self.records: BeamRecords = records
        for part in (layer := records.layer(0)).keys, layer.updates, layer.log_decay:
            if part is not None:
                part.fill_(float("nan"))
        self.state = forks.state.to(dtype)
        self.ancestors = Ancestors(len(forks.widths), max(forks.widths))
        self.outs: list[Tensor] = []

    @property
    def done(self) -> bool:
        return len(self.outs) == len(self.forks.widths)

    def step(self, kernel: RecurrentKernel, corrupt: tuple[int, int, int] | None = None) -> Tensor:
        """The next round; `corrupt` is (beam, depth, slot) to set in the index first."""
        spec, depth = self.forks.spec, len(self.outs) + 1
        anc = self.ancestors.fork(self.forks.parents[depth - 1])
        if corrupt is not None:
            anc = anc.clone()
            anc[corrupt[0], corrupt[1] - 1] = corrupt[2]
        tokens = self.forks.tokens[depth - 1].to(self.dtype)
        out, updates = kernel.beams(spec, *tokens.all, self.state, self.records.layer(0), anc)
        layer = self.records.layer(0)
        decay = None if spec.constant_decay else tokens.log_decay
        self.records.write(0, depth, tokens.k.to(layer.keys.dtype), updates, decay)
        self.outs.append(out)
        return out

    def run(self, kernel: RecurrentKernel) -> list[Tensor]:
        while not self.done:
            self.step(kernel)
        return self.outs
