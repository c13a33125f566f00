"""How the beams of one request know what came before them on linear layers, step by step.

Records are how beams are served; a state for every beam, and replaying what each was fed, are baselines.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, get_args

import torch
from torch import Tensor

from relaygr.kernels.convolution import convolve_beams
from relaygr.kernels.materialised import MaterialisedBeams, ReplayedBeams
from relaygr.kernels.recurrent import RecurrentKernel, RecurrentSpec
from relaygr.memory.records import BeamRecords
from relaygr.memory.recurrent import PromptState

StateMode: TypeAlias = Literal["records", "materialise", "replay"]
STATE_MODES: tuple[StateMode, ...] = get_args(StateMode)


class StateBeams(Protocol):
    """Linear layers of one request's beams. Each layer, counted among the linear ones, calls `convolve` and
    then `step` once a depth.

    `anc` is the index that the full-attention layers use, int32 [W, depth].
    Changes: what the beams leave for the next depth. The prompt's state stays as it is.
    """

    def convolve(self, layer: int, x: Tensor, weight: Tensor, anc: Tensor) -> Tensor:
        """Rows x [W, C] behind each beam's window, weight [C, taps] -> [W, C], in fp32 or wider."""

    def step(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, anc: Tensor
    ) -> Tensor:
        """One token of each beam, as of `RecurrentKernel.beams` -> [W, Hv, dv]."""


class RecordedBeams:
    """The prompt's state is shared, and each token leaves a record in its slot; nothing is copied."""

    def __init__(
        self, kernel: RecurrentKernel, spec: RecurrentSpec, state: PromptState, records: BeamRecords
    ) -> None:
        self._kernel, self._spec, self._state, self._records = kernel, spec, state, records

    def convolve(self, layer: int, x: Tensor, weight: Tensor, anc: Tensor) -> Tensor:
        own = self._records.layer(layer)
        y = convolve_beams(x, weight, None, self._state.rows(layer), own.rows, own.starts, anc)
        self._records.write_rows(layer, anc.shape[1], x)
        return y

    def step(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, anc: Tensor
    ) -> Tensor:
        records, state = self._records.layer(layer), self._state.state(layer)
        out, updates = self._kernel.beams(self._spec, q, k, v, log_decay, beta, state, records, anc)
        self._records.write(layer, anc.shape[1], k, updates, log_decay)
        return out


class MaterialisedStates:
    """A state and convolution rows for every beam, gathered by parent before each step.

    Changes: `restart` begins again behind a prompt, in the memory that is there.
    """

    def __init__(self, spec: RecurrentSpec, state: PromptState) -> None:
        self.layers = [
            MaterialisedBeams(spec, state.state(layer), state.rows(layer))
            for layer in range(state.layout.layers)
        ]

    def restart(self, state: PromptState) -> None:
        for layer, beams in enumerate(self.layers):
            beams.restart(state.state(layer), state.rows(layer))

    def convolve(self, layer: int, x: Tensor, weight: Tensor, anc: Tensor) -> Tensor:
        beams = self.layers[layer]
        beams.fork(_parents(anc))
        return beams.convolve(x, _wide(weight), None)

    def step(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, anc: Tensor
    ) -> Tensor:
        return self.layers[layer].step(q, k, v, log_decay, beta)


class ReplayedStates:
    """Each step runs the recurrence over all tokens of each beam's path again, from the prompt's state."""

    def __init__(self, spec: RecurrentSpec, state: PromptState) -> None:
        layers = range(state.layout.layers)
        self._state = state
        self._beams = [ReplayedBeams(spec, state.state(layer)) for layer in layers]
        self._rows: list[list[Tensor]] = [[] for _ in layers]

    def convolve(self, layer: int, x: Tensor, weight: Tensor, anc: Tensor) -> Tensor:
        rows = self._rows[layer]
        rows.append(x)
        starts = [0]
        for part in rows[:-1]:
            starts.append(starts[-1] + len(part))
        return convolve_beams(x, weight, None, self._state.rows(layer), torch.cat(rows), tuple(starts), anc)

    def step(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, anc: Tensor
    ) -> Tensor:
        return self._beams[layer].step(q, k, v, log_decay, beta, anc)


def _parents(anc: Tensor) -> Tensor:
    """Each beam's number a depth before; the root's is 0."""
    if anc.shape[1] == 1:
        return torch.zeros(anc.shape[0], dtype=torch.int64, device=anc.device)
    return anc[:, -2].long()


def _wide(weight: Tensor) -> Tensor:
    return weight if weight.dtype == torch.float64 else weight.float()
