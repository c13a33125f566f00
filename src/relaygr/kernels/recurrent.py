"""The contract of linear attention: a prompt's recurrent state, and many beams that read one such state.

A value head keeps S [dk, dv]. A token decays it, adds k u^T and reads o = S^T q; u is v, or for the delta
families what v adds to the state's own guess, `beta (v - (decayed S)^T k)`. As u depends on ancestors only,
records (k, u, ln a) stand for the states of all beams: no beam has one of its own, and a fork copies nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_args

import torch
from torch import Tensor

Family: TypeAlias = Literal["decayed", "gated", "delta", "kda"]
FAMILIES: tuple[Family, ...] = get_args(Family)
STATE_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """Shape of one layer's recurrence; value head h reads key head h // (value_heads / key_heads).

    Attributes:
        family: "decayed" (RetNet, Mamba-2) and "gated" (GLA) add k v^T; "delta" (gated delta rule) and "kda"
            correct the state instead. The decay of "gated" and "kda" is a vector on the key axis.
        key_dim, value_dim: dk and dv of a head.
        decay_heads: of a vector decay: `key_heads` or `value_heads`; 0 means `value_heads`.
        constant_decay: ln a [Hv] is the layer's and not a token's, so that no record holds it.

    Raises:
        ValueError: numbers that do not fit together, or an unknown family.
    """

    family: Family
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    decay_heads: int = 0
    constant_decay: bool = False

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family: {self.family!r} is not one of {', '.join(FAMILIES)}")
        for name in ("key_heads", "value_heads", "key_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"value_heads: {self.value_heads} must be a multiple of {self.key_heads} key heads"
            )
        if self.decay_heads not in (0, self.value_heads, *((self.key_heads,) if self.vector else ())):
            raise ValueError(
                f"decay_heads: {self.decay_heads} is neither the key heads' nor the value heads'"
            )
        if self.constant_decay and self.vector:
            raise ValueError(f"constant_decay: {self.family} has a decay of each token")

    @property
    def vector(self) -> bool:
        """Each key channel has its decay."""
        return self.family in ("gated", "kda")

    @property
    def delta(self) -> bool:
        """The update corrects what the state says about k, with the strength beta."""
        return self.family in ("delta", "kda")

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """Of one token's ln a as a record holds it; () if none does."""
        if self.constant_decay:
            return ()
        heads = self.decay_heads or self.value_heads
        return (heads, self.key_dim) if self.vector else (heads,)

    @property
    def read_heads(self) -> int:
        """Heads at which decayed keys differ; each serves value_heads / read_heads value heads."""
        return self.decay_shape[0] if self.vector else self.key_heads

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.value_heads, self.key_dim, self.value_dim

    def empty_state(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """The state before the first token, [Hv, dk, dv]."""
        return torch.zeros(self.state_shape, dtype=dtype, device=device)


class Records(Protocol):
    """What tokens fed to beams left behind on one layer, step-major: slot `starts[d - 1] + b` is beam b's of
    depth d. Slots that no row of an ancestor index names may hold anything, NaN included.

    `keys` [slots, Hk, dk] in any float type; `updates` [slots, Hv, dv]; `log_decay` [slots, *decay_shape],
    None for a constant decay: a token's own ln a. It is not the sum along the path: a weak decay behind
    strong ones would be the difference of two large numbers.
    """

    @property
    def keys(self) -> Tensor: ...

    @property
    def updates(self) -> Tensor: ...

    @property
    def log_decay(self) -> Tensor | None: ...

    @property
    def starts(self) -> tuple[int, ...]: ...


class BeamStep(NamedTuple):
    """`out` [W, Hv, dv]: what each beam reads; `updates` [W, Hv, dv]: the u to record with its key."""

    out: Tensor
    updates: Tensor


class RecurrentKernel(ABC):
    """Linear attention of one layer. A call belongs to one request and changes none of its inputs.

    All sums are in the dtype of the state, fp32 or fp64, and so are all results. Decays act as exponentials
    of sums over the tokens between, never as quotients: any ln a <= 0 gives finite results. Queries come
    scaled, keys normalised where the model wants that. Equal inputs at an equal thread count give equal bits.

    Raises:
        ValueError: shapes, dtypes or counts that do not fit together.
    """

    name: str

    def grain(self, spec: RecurrentSpec) -> int:
        """A prompt has the same bits however it is cut at multiples of so many tokens."""
        return 1

    @abstractmethod
    def prefill(
        self,
        spec: RecurrentSpec,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        beta: Tensor | None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Prompt tokens in order, from any state on; so a later call continues an earlier one.

        Args:
            q, k: [n, Hk, dk].
            v: [n, Hv, dv].
            log_decay: ln a <= 0, [n, *decay_shape], or [Hv] for a constant decay.
            beta: [n, Hv] in [0, 1]; None for the families without.
            state: [Hv, dk, dv] before the first of these tokens.

        Returns:
            (out [n, Hv, dv], the state behind the last token).
        """

    @abstractmethod
    def beams(
        self,
        spec: RecurrentSpec,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        beta: Tensor | None,
        state: Tensor,
        records: Records,
        anc: Tensor,
    ) -> BeamStep:
        """One token of each of W beams, on top of the prompt's state and the records of its ancestors.

        Args:
            q, k, v, log_decay, beta: as of `prefill`, with W rows.
            state: [Hv, dk, dv] behind the prompt, shared by all beams.
            records: of the depths before.
            anc: int32 [W, t], t >= 1; column j - 1 is a beam's slot at depth j. The last column is its own
                slot, which the caller writes afterwards: it is not read.
        """


def check_tokens(
    spec: RecurrentSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor | None,
    state: Tensor,
) -> None:
    """Raise ValueError unless these fit `spec` and one another."""
    rows = q.shape[0] if q.dim() else 0
    decay = (spec.value_heads,) if spec.constant_decay else (rows, *spec.decay_shape)
    wanted: dict[str, tuple[Tensor, tuple[int, ...]]] = {
        "q": (q, (rows, spec.key_heads, spec.key_dim)),
        "k": (k, (rows, spec.key_heads, spec.key_dim)),
        "v": (v, (rows, spec.value_heads, spec.value_dim)),
        "log_decay": (log_decay, decay),
        "state": (state, spec.state_shape),
    }
    if spec.delta:
        if beta is None:
            raise ValueError(f"beta: {spec.family} needs a strength for each token")
        wanted["beta"] = (beta, (rows, spec.value_heads))
    elif beta is not None:
        raise ValueError(f"beta: {spec.family} has none")
    for name, (tensor, shape) in wanted.items():
        if tensor.shape != shape:
            raise ValueError(f"{name}: {tuple(tensor.shape)}: expected {shape}")
    if state.dtype not in STATE_DTYPES:
        raise ValueError(f"state: {state.dtype} must be float32 or float64")


def check_records(spec: RecurrentSpec, rows: int, records: Records, anc: Tensor) -> None:
    """Raise ValueError unless the records and the index fit. Slot numbers are not looked at."""
    slots = records.keys.shape[0]
    if records.keys.shape != (slots, spec.key_heads, spec.key_dim):
        raise ValueError(f"records.keys: {tuple(records.keys.shape)} do not fit {spec}")
    if records.updates.shape != (slots, spec.value_heads, spec.value_dim):
        raise ValueError(f"records.updates: {tuple(records.updates.shape)} do not fit {spec}")
    decays = records.log_decay
    if spec.constant_decay:
        if decays is not None:
            raise ValueError("records.log_decay: a constant decay is not recorded")
    elif decays is None or decays.shape != (slots, *spec.decay_shape):
        raise ValueError(f"records.log_decay: expected {(slots, *spec.decay_shape)}")
    if anc.dtype != torch.int32 or anc.dim() != 2 or anc.shape[0] != rows:
        raise ValueError(f"anc: {anc.dtype} {tuple(anc.shape)}: expected int32 [{rows}, t]")
    if not 1 <= anc.shape[1] <= len(records.starts):
        raise ValueError(f"anc: depth {anc.shape[1]} must be in [1, {len(records.starts)}]")
