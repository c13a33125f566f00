"""How varied lists are, within themselves and over all requests, and what each generator is good for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from relaygr.listwise.arrays import Int32, Int64
from relaygr.listwise.diversity import list_distance, pool_distance
from relaygr.listwise.pool import MISSING
from relaygr.listwise.result import Candidate, SlateResult
from relaygr.training.slate.logs import LoggedLists


class Variety(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the lists of one method; None where items have no vectors or no such attribute.

    Attributes:
        distance: mean (1 - cosine) / 2 over the pairs of a list.
        topic_entropy: of the topics of a list, in nats.
        author_share: largest share of one author in a list.
        catalogue: distinct items over all lists; `catalogue_share` of those that could have been shown.
    """

    method: str
    distance: float | None
    topic_entropy: float | None
    author_share: float | None
    catalogue: int
    catalogue_share: float


class GeneratorGain(msgspec.Struct, frozen=True, kw_only=True):
    """What the pool's best list would lose on average without one generator.

    Attributes:
        gain: in the units of the evaluator's score.
        best: share of requests where it proposed the best list (others may have, too).
        lists: that it proposed.
    """

    generator: str
    gain: float
    best: float
    lists: int


class PoolVariety(msgspec.Struct, frozen=True, kw_only=True):
    """The pools of lists of some requests; `distance` is the mean of pairwise order distances."""

    distance: float
    lists: float
    generators: tuple[GeneratorGain, ...]


def variety(
    method: str, lists: LoggedLists, available: Int64, topic: str = "topic", author: str = "author"
) -> Variety:
    """Of lists, whoever was shown them.

    Args:
        available: ids of the items that could have been shown, each once.
    """
    shown = [int(each) for each in lists.shown]
    distances = None
    if lists.vectors is not None:
        vectors = lists.vectors
        several = [n for n, length in enumerate(shown) if length > 1]
        distances = [list_distance(vectors[n, : shown[n]]) for n in several]
    topics, authors = lists.attributes.get(topic), lists.attributes.get(author)
    inside = np.arange(lists.items.shape[1]) < lists.shown[:, None]
    number = len(np.unique(lists.items[inside]))
    return Variety(
        method=method,
        distance=float(np.mean(distances)) if distances else None,
        topic_entropy=None if topics is None else _mean_entropy(topics, shown),
        author_share=None if authors is None else _mean_share(authors, shown),
        catalogue=number,
        catalogue_share=number / len(available),
    )


def _mean_entropy(values: Int64, shown: Sequence[int]) -> float:
    found = []
    for row, length in zip(values, shown, strict=True):
        _, counts = np.unique(row[:length], return_counts=True)
        share = counts / length
        found.append(float(-(share * np.log(share)).sum()))
    return float(np.mean(found))


def _mean_share(values: Int64, shown: Sequence[int]) -> float:
    found = []
    for row, length in zip(values, shown, strict=True):
        known = row[:length][row[:length] != MISSING]
        found.append(np.unique(known, return_counts=True)[1].max() / length if len(known) else 0.0)
    return float(np.mean(found))


def pool_variety(results: Sequence[SlateResult]) -> PoolVariety | None:
    """Of results whose lists have scores; None if none has."""
    scored = [[one for one in result.pool if one.score is not None] for result in results]
    scored = [pool for pool in scored if pool]
    if not scored:
        return None
    gains: dict[str, list[float]] = {}
    best: dict[str, int] = {}
    proposed: dict[str, int] = {}
    for pool in scored:
        values = [_score(one) for one in pool]
        top = max(values)
        makers = [{one.generator, *one.also} for one in pool]
        for name in set().union(*makers):
            others = [value for value, by in zip(values, makers, strict=True) if by != {name}]
            gains.setdefault(name, []).append(top - max(others) if others else top)
            mine = [value for value, by in zip(values, makers, strict=True) if name in by]
            best[name] = best.get(name, 0) + (max(mine) == top)
            proposed[name] = proposed.get(name, 0) + len(mine)
    rows = tuple(
        GeneratorGain(
            generator=name,
            gain=sum(gains[name]) / len(scored),
            best=best[name] / len(scored),
            lists=proposed[name],
        )
        for name in sorted(gains)
    )
    distances = [pool_distance(_stacked(pool)) for pool in scored if len(pool) > 1]
    return PoolVariety(
        distance=float(np.mean(distances)) if distances else 0.0,
        lists=float(np.mean([len(pool) for pool in scored])),
        generators=rows,
    )


def _score(one: Candidate) -> float:
    assert one.score is not None
    return one.score


def _stacked(pool: Sequence[Candidate]) -> Int32:
    found: Int32 = np.stack([one.picks for one in pool]).astype(np.int32)
    return found
