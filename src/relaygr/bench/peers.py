"""What a user would run instead, measured elsewhere, and how to compare at an equal matrix rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

PEER_PRESET = "hstu-kuairand"
PEER_SOURCE = (
    "peers measured on 2 cores, torch.mm rate 166-187 GFLOP/s fp32, 406-412 bf16; Meta: "
    "generative-recommenders, PyTorch path; NVIDIA: recsys-examples, PyTorch reference layer"
)
PEER_FP32_GFLOPS = (166 + 187) / 2
PEER_BF16_GFLOPS = (406 + 412) / 2

Pass = Literal["full", "hit"]


@dataclass(frozen=True, slots=True)
class PeerRow:
    """Median milliseconds of one peer's 3 layers, 4 heads x 128, width 512, batch 1."""

    peer: str
    step: Pass
    history: int
    candidates: int
    fp32_ms: float
    bf16_ms: float


_META, _NVIDIA = "Meta", "NVIDIA"

PEER_ROWS = (
    PeerRow(_META, "full", 1024, 128, 185, 84),
    PeerRow(_META, "hit", 1024, 128, 31.6, 18.8),
    PeerRow(_NVIDIA, "full", 1024, 128, 193, 124),
    PeerRow(_META, "full", 1024, 512, 392, 159),
    PeerRow(_META, "hit", 1024, 512, 99.9, 54.9),
    PeerRow(_NVIDIA, "full", 1024, 512, 447, 232),
    PeerRow(_META, "full", 2048, 128, 784, 406),
    PeerRow(_META, "hit", 2048, 128, 77.4, 41.3),
    PeerRow(_NVIDIA, "full", 2048, 128, 993, 608),
    PeerRow(_META, "full", 2048, 512, 998, 579),
    PeerRow(_META, "hit", 2048, 512, 213, 133),
    PeerRow(_NVIDIA, "full", 2048, 512, 1330, 903),
)


class PeerComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One of our rows against one peer.

    Attributes:
        step: `full` (nothing cached) or `hit` (history cached).
        peer_ms: as measured there, same dtype.
        scaled_ms: peer_ms as it would be at this machine's `torch.mm` rate of the same dtype.
        speed_up: scaled_ms / ours_ms.
        speed_up_best: the peer's better dtype, scaled by that dtype's rate, over ours_ms; None when a rate
            was not measured.
    """

    peer: str
    step: Pass
    history: int
    candidates: int
    dtype: str
    ours_ms: float
    peer_ms: float
    scaled_ms: float
    speed_up: float
    speed_up_best: float | None


def compare(
    step: Pass,
    history: int,
    candidates: int,
    dtype: str,
    ours_ms: float,
    fp32_gflops: float | None,
    bf16_gflops: float | None,
) -> list[PeerComparison]:
    """All peers that ran this shape; the rates are this machine's `torch.mm` rates, None if not measured."""
    found = []
    for row in PEER_ROWS:
        if (row.step, row.history, row.candidates) != (step, history, candidates):
            continue
        fp32 = None if fp32_gflops is None else row.fp32_ms * PEER_FP32_GFLOPS / fp32_gflops
        bf16 = None if bf16_gflops is None else row.bf16_ms * PEER_BF16_GFLOPS / bf16_gflops
        same = bf16 if dtype == "bf16" else fp32
        if same is None:
            continue
        best = None if fp32 is None or bf16 is None else min(fp32, bf16)
        found.append(
            PeerComparison(
                peer=row.peer,
                step=step,
                history=history,
                candidates=candidates,
                dtype=dtype,
                ours_ms=ours_ms,
                peer_ms=row.bf16_ms if dtype == "bf16" else row.fp32_ms,
                scaled_ms=same,
                speed_up=same / ours_ms,
                speed_up_best=None if best is None else best / ours_ms,
            )
        )
    return found
