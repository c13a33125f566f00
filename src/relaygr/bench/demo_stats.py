"""From laps to the tables of the demonstration: latency by mode and history length, and quality by order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relaygr.bench.cascade import Lap, Mode, Visit
from relaygr.bench.demo_result import Bucket, ModeStats, Quality
from relaygr.bench.retrieval import Retriever
from relaygr.data.dataset import Int64s
from relaygr.training.baselines import RecentItems, popularity_scores
from relaygr.training.metrics import Bools, Floats, ndcg, request_metrics, top_order

TOP = 10
BUCKET_ENDS = (512, 1024, 2048, 4096, 1 << 62)
ORDERS = ("ranker", "retrieval", "popularity", "recency")
INJECTED, RETRIEVED = "positives injected", "retrieved only"


def mode_stats(laps: dict[Mode, list[Lap]], picked: Sequence[int]) -> tuple[ModeStats, ...]:
    """One row per mode over the visits with the indices `picked`."""
    return tuple(
        _stats(mode, [laps[mode][i] for i in picked], [laps[Mode.INLINE][i] for i in picked]) for mode in laps
    )


def buckets(laps: dict[Mode, list[Lap]], visits: Sequence[Visit]) -> tuple[Bucket, ...]:
    """Rows by number of events in the history; empty buckets are left out."""
    lengths = np.array([len(visit.history) for visit in visits])
    found: list[Bucket] = []
    low = 0
    for high in BUCKET_ENDS:
        picked = np.flatnonzero((lengths > low) & (lengths <= high)).tolist()
        if picked:
            end = min(high, int(lengths[picked].max())) if high == BUCKET_ENDS[-1] else high
            found.append(Bucket(low=low, high=end, modes=mode_stats(laps, picked)))
        low = high
    return tuple(found)


def _stats(mode: Mode, laps: Sequence[Lap], inline: Sequence[Lap]) -> ModeStats:
    rank = np.array([lap.rank_ms for lap in laps])
    total = np.array([lap.total_ms for lap in laps])
    worst = max(laps, key=lambda lap: lap.rank_ms)
    pairs = list(zip(laps, inline, strict=True))
    assert all(np.array_equal(lap.candidates, base.candidates) for lap, base in pairs), "candidates"
    return ModeStats(
        mode=str(mode),
        requests=len(laps),
        rank_p50_ms=percentile(rank, 50),
        rank_p99_ms=percentile(rank, 99),
        rank_mean_ms=float(rank.mean()),
        rank_max_ms=worst.rank_ms,
        rank_max_cpu_ms=worst.rank_cpu_ms,
        total_p50_ms=percentile(total, 50),
        total_p99_ms=percentile(total, 99),
        prefetch_p50_ms=percentile(np.array([lap.prefetch_ms for lap in laps]), 50),
        ready=float(np.mean([lap.ready for lap in laps])),
        rank_computed=float(np.mean([lap.rank_computed for lap in laps])),
        prefetch_computed=float(np.mean([lap.prefetch_computed for lap in laps])),
        largest_difference=max(float(np.abs(lap.logits - base.logits).max()) for lap, base in pairs),
        top10_same=float(np.mean([_top(lap) == _top(base) for lap, base in pairs])),
    )


def percentile(samples: npt.NDArray[np.float64], percent: float) -> float:
    """Nearest rank: a value that was really measured."""
    return float(np.percentile(samples, percent, method="inverted_cdf"))


def _top(lap: Lap) -> set[int]:
    return set(top_order(lap.logits[:, 0].astype(np.float64), TOP).tolist())


def recall(visits: Sequence[Visit], retriever: Retriever) -> float:
    """Share of all true next items that retrieval finds."""
    hits = [np.isin(visit.injected, retriever.retrieve(visit.history.items)) for visit in visits]
    return float(np.concatenate(hits).mean())


def quality(visits: Sequence[Visit], laps: Sequence[Lap], retriever: Retriever) -> tuple[Quality, ...]:
    """Four orders of the same candidates against the items that really came next.

    The scores of one pass serve both candidate sets: a candidate's score does not depend on the others.
    """
    values: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for visit, lap in zip(visits, laps, strict=True):
        positive = np.isin(lap.candidates, visit.injected)
        retrieved = np.isin(lap.candidates, retriever.retrieve(visit.history.items))
        for order, scores in zip(ORDERS, _scores(visit, lap, retriever), strict=True):
            if positive.any() and not positive.all():
                values.setdefault((INJECTED, order), []).append(request_metrics(scores, positive)[:2])
            found = _found(scores[retrieved], positive[retrieved], len(visit.injected))
            values.setdefault((RETRIEVED, order), []).append(found)
    return tuple(
        Quality(
            candidates=candidates,
            order=order,
            requests=len(pairs),
            ndcg=float(np.mean([pair[0] for pair in pairs])),
            hr=float(np.mean([pair[1] for pair in pairs])),
        )
        for (candidates, order), pairs in sorted(values.items(), key=lambda item: item[0][0])
    )


def unbeaten(rows: Sequence[Quality]) -> tuple[str, ...]:
    """What the ranker does not beat in NDCG@10, as "order (candidates)"."""
    ranker = {row.candidates: row.ndcg for row in rows if row.order == ORDERS[0]}
    return tuple(
        f"{row.order} ({row.candidates})"
        for row in rows
        if row.order != ORDERS[0] and row.ndcg >= ranker.get(row.candidates, 0.0)
    )


def _found(scores: Floats, positive: Bools, positives: int) -> tuple[float, float]:
    """NDCG and HR at 10 where `positives` items came next, retrieved or not."""
    top = positive[top_order(scores, TOP)] if len(scores) else np.zeros(0, bool)
    full = np.zeros(TOP, bool)
    full[: len(top)] = top
    return ndcg(full, positives), float(full.any())


def _scores(visit: Visit, lap: Lap, retriever: Retriever) -> tuple[Floats, ...]:
    """Scores of the candidates in the order of `ORDERS`."""
    history = visit.history
    popularity = popularity_scores(retriever.catalogue, lap.candidates)
    recent = RecentItems()
    recent.advance(history.items, history.timestamps, len(history))
    return (
        lap.logits[:, 0].astype(np.float64),
        _similarity(retriever, history.items, lap.candidates),
        popularity,
        recent.scores(lap.candidates, popularity),
    )


def _similarity(retriever: Retriever, items: Int64s, candidates: Int64s) -> Floats:
    """Inner products; items outside the catalogue come last."""
    known = retriever.catalogue.knows(candidates)
    scores = np.full(len(candidates), -1e9)
    place = np.searchsorted(retriever.catalogue.items, candidates[known])
    scores[known] = retriever.vectors[place] @ retriever.user_vector(items)
    return scores
