"""What a request brings to a forward pass: prompt tokens, or one code for each of its beams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from relaygr.kernels.interface import KvStore
from relaygr.memory.recurrent import PromptState
from relaygr.models.decoder.state_beams import StateBeams


class BeamStore(Protocol):
    """Keys and values of one request's beams; a slot is written once.

    `write` sets the first W slots of `depth` (from 1) on `layer` from k, v [W, Hkv, d]. `keys` and `values`
    are views [S, Hkv, d] of one layer, all slots of all depths; `rows` says which rows of them are the slots
    that an index int32 [W, t] names by their place in each depth.
    """

    def write(self, layer: int, depth: int, k: Tensor, v: Tensor) -> None: ...

    def keys(self, layer: int) -> Tensor: ...

    def values(self, layer: int) -> Tensor: ...

    def rows(self, anc: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class PromptRow:
    """New prompt tokens of one request.

    Attributes:
        tokens: int64 [k], k >= 1, at positions [cached, cached + k).
        cached: tokens whose K/V `store` already holds.
        store: gets the K/V of the new tokens.
        state: of a model with linear layers: stands behind the cached tokens, and behind the new ones after
            the call. It is left as it was by a call that fails.
    """

    tokens: Tensor
    cached: int
    store: KvStore
    state: PromptState | None = None

    def __post_init__(self) -> None:
        if self.tokens.dim() != 1 or not len(self.tokens):
            raise ValueError(f"tokens: {list(self.tokens.shape)} must be [k] with k >= 1")
        if self.cached < 0:
            raise ValueError(f"cached: {self.cached} must not be negative")
        if self.state is not None and self.state.tokens != self.cached:
            told = f"the state stands behind {self.state.tokens} tokens and cannot be cut back"
            raise ValueError(f"cached: {self.cached}, but {told}")


@dataclass(frozen=True, slots=True, eq=False)
class BeamRows:
    """One decode step of one request's beams.

    Attributes:
        tokens: int64 [W], the code that each beam chose last.
        position: where these codes stand, the same for all.
        depth: which code it is, from 1; the prompt has none.
        prompt, prompt_tokens: the shared keys and values, and how many rows of them are seen.
        own: gets the K/V of the codes, beam b in slot b of this depth.
        anc: int32 [W, depth]; column j - 1 is the slot of a beam's ancestor at depth j, counted from 0 in
            each depth; the last is its own.
        linear: of a model with linear layers: the prompt's state and what these beams left on it.
    """

    tokens: Tensor
    position: int
    depth: int
    prompt: KvStore
    prompt_tokens: int
    own: BeamStore
    anc: Tensor
    linear: StateBeams | None = None

    def __post_init__(self) -> None:
        if self.tokens.dim() != 1 or not len(self.tokens):
            raise ValueError(f"tokens: {list(self.tokens.shape)} must be [W] with W >= 1")
        if self.depth < 1 or self.position < 0 or self.prompt_tokens < 0:
            raise ValueError(
                f"depth {self.depth} must be at least 1, position {self.position} and "
                f"prompt_tokens {self.prompt_tokens} not negative"
            )
        if self.anc.shape != (len(self.tokens), self.depth):
            raise ValueError(f"anc: {list(self.anc.shape)} must be [{len(self.tokens)}, {self.depth}]")
