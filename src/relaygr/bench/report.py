"""What `bench rank --json` writes."""

from __future__ import annotations

import msgspec

from relaygr.bench.machine import Machine
from relaygr.bench.peers import PeerComparison


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the grid; milliseconds are medians, `_min_ms` the fastest run.

    Attributes:
        full_ms: history and candidates, nothing cached.
        hit_ms: candidates against a wholly cached history.
        append_ms: 16 events behind the cached rest, no candidates.
        prefill_ms: the history alone, nothing cached.
        naive_ms: the dense pass over history and candidates, in a process of its own, untuned.
        naive_kept_heap_ms: the dense pass in this process, which keeps freed memory (`kernels.cpu.heap`).
        prefill_efficiency: the model's layer FLOPs of a prefill a second, over the best
            matrix rate of the dtype: model-FLOP utilisation.
        prefill_efficiency_torch_mm: the same over the rate of plain `torch.mm`.
        prefill_executed_efficiency: the FLOPs really computed, over the best rate: a prefetch leaves out what
            nobody reads of the last layer.
        max_score_diff: largest difference of a logit, kernel against dense pass (and hit against full).
        score_spread: standard deviation of the dense pass's logits, to read `max_score_diff` by.
        rounds, naive_runs: samples behind the medians.
    """

    history: int
    candidates: int
    dtype: str
    route: str
    full_ms: float
    hit_ms: float
    append_ms: float
    naive_ms: float
    naive_kept_heap_ms: float
    prefill_ms: float
    full_min_ms: float
    hit_min_ms: float
    append_min_ms: float
    naive_min_ms: float
    prefill_min_ms: float
    prefill_efficiency: float
    prefill_efficiency_torch_mm: float
    prefill_executed_efficiency: float
    max_score_diff: float
    score_spread: float
    rounds: int
    naive_runs: int


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench rank --json` writes; `peers` is empty for shapes no peer ran."""

    machine: Machine
    preset: str
    seed: int
    kernels: dict[str, str]  # dtype -> why its route was chosen
    rows: list[RankRow]
    peers_source: str
    peers: list[PeerComparison]
