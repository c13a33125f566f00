"""What the layers of one forward pass share: the rows of its requests, their places, and the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from relaygr.kernels.beams import BeamKernel, Mode
from relaygr.kernels.linear import Linear
from relaygr.kernels.recurrent import RecurrentKernel
from relaygr.models.decoder.rope import Rotation
from relaygr.models.decoder.rows import BeamRows, PromptRow


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """Attention, linear attention, and how beams attend to their shared prompt."""

    beams: BeamKernel
    recurrent: RecurrentKernel
    mode: Mode


@dataclass(frozen=True, slots=True, eq=False)
class PromptBatch:
    """New prompt rows of several requests, one behind another.

    Attributes:
        rows, spans: the requests, and where the rows of each stand.
        last: int64, each request's last row.
        rotation: of all rows.
        linear: for products whose rows come now in one pass, now in several.
        alone: for products of last rows only.
        states: what linear layers computed, by request and layer: (state, convolution rows). The requests'
            own states change when the pass is over, so that one that fails leaves them as they were.
    """

    rows: Sequence[PromptRow]
    spans: Sequence[slice]
    last: Tensor
    rotation: Rotation
    linear: Linear
    alone: Linear
    kernels: Kernels
    states: list[dict[int, tuple[Tensor, Tensor]]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "states", [{} for _ in self.rows])

    @property
    def at_last(self) -> Rotation:
        return Rotation(self.rotation.cos[self.last], self.rotation.sin[self.last])

    def commit(self) -> None:
        """Move the requests' states on to behind their new tokens."""
        for row, states in zip(self.rows, self.states, strict=True):
            if row.state is not None:
                for layer, (state, rows) in states.items():
                    row.state.write(layer, state, rows)
                row.state.tokens = row.cached + len(row.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class BeamBatch:
    """One row for each beam of several requests."""

    rows: Sequence[BeamRows]
    spans: Sequence[slice]
    rotation: Rotation
    linear: Linear
    kernels: Kernels


def prompt_batch(
    rows: Sequence[PromptRow], places: Sequence[Rotation], linear: Linear, alone: Linear, kernels: Kernels
) -> PromptBatch:
    """`places`: the rotation of each request's rows."""
    spans = _spans([len(row.tokens) for row in rows])
    last = torch.tensor([at.stop - 1 for at in spans], device=rows[0].tokens.device)
    rotation = Rotation(joined([p.cos for p in places]), joined([p.sin for p in places]))
    return PromptBatch(rows, spans, last, rotation, linear, alone, kernels)


def beam_batch(
    rows: Sequence[BeamRows], places: Sequence[Rotation], linear: Linear, kernels: Kernels
) -> BeamBatch:
    """`places`: one position a request, for all of its beams."""
    spans = _spans([len(row.tokens) for row in rows])
    rotation = places[0] if len(rows) == 1 else _repeated(places, [len(row.tokens) for row in rows])
    return BeamBatch(rows, spans, rotation, linear, kernels)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """All rows in one tensor; one part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def wide(x: Tensor) -> Tensor:
    """As fp32 or wider."""
    return x if x.dtype == torch.float64 else x.float()


def _spans(lengths: Sequence[int]) -> list[slice]:
    spans, start = [], 0
    for length in lengths:
        spans.append(slice(start, start + length))
        start += length
    return spans


def _repeated(places: Sequence[Rotation], widths: Sequence[int]) -> Rotation:
    counts = torch.tensor(widths, device=places[0].cos.device)
    cos, sin = (torch.cat([getattr(p, name) for p in places]) for name in ("cos", "sin"))
    return Rotation(cos.repeat_interleave(counts, 0), sin.repeat_interleave(counts, 0))
