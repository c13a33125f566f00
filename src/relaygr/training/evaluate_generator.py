"""Evaluate a generator on the requests after a split: recall of what it names, against simpler rivals."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events, Int64s
from relaygr.data.split import evaluation_requests, temporal_split
from relaygr.generation.catalogue.filters import Filter, Wanted, make_filter
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.recipe import Recipe
from relaygr.generation.results import Found
from relaygr.generation.sids.build import SemanticIds
from relaygr.kernels.interface import Kernel
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.ranker import Ranker
from relaygr.training.bootstrap import Floats, interval, resample
from relaygr.training.candidates import Seen, SeenOption, seen_rule
from relaygr.training.catalogue import Catalogue, catalogue_before
from relaygr.training.evaluate import Estimate
from relaygr.training.offline import Part, requested_part
from relaygr.training.scoring import RankerScorer, UserEvents
from relaygr.training.sid_metrics import CUTS, LONGEST, SID_METRICS, list_metrics
from relaygr.training.sid_retrieval import SidRetriever
from relaygr.training.sid_rivals import popular, ranked, recent
from relaygr.training.sid_task import served_index, wanted_items

Observe = Callable[[int, int], None]


class SidEvalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to evaluate; equal options give equal requests.

    Attributes:
        max_requests: a uniform sample of so many requests; None takes all.
        width: of the beams, and semantic ids of a result.
        seen: whether items of the user's earlier events may be named; see `candidates.seen_rule`.
    """

    part: Part = "test"
    max_requests: int | None = None
    width: int = 64
    seen: SeenOption = "auto"
    seed: int = 0


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Share of the catalogue that a scorer named at least once among the first 10, and 50, of any request."""

    scorer: str
    at: tuple[float, ...]


class SidEvalReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked and how well it was answered.

    Attributes:
        model, sids: fingerprint of the weights and digest of the build of semantic ids.
        catalogue_items: of the training part; nothing else can be named, by any scorer.
        requests, users: that were asked.
        unanswerable_requests: of which the catalogue knows no item; they count nowhere.
        left_out_items: items of requests that the catalogue does not know; they count nowhere.
        ids_named: semantic ids in all results.
        invalid_share: share of them that no item of the catalogue has, or that came with another item's.
        short_results: results with fewer ids than the width.
    """

    data: str
    model: str
    sids: str
    train_end_s: int
    valid_end_s: int
    options: SidEvalOptions
    seen: Seen
    catalogue_items: int
    requests: int
    users: int
    unanswerable_requests: int
    left_out_items: int
    ids_named: int
    invalid_share: float
    short_results: int
    seconds: float
    metrics: tuple[str, ...]
    coverage: tuple[Coverage, ...]
    estimates: tuple[Estimate, ...]


@dataclass(slots=True)
class _Tally:
    """What is counted request by request."""

    scorers: tuple[str, ...]
    values: list[list[tuple[float, ...]]] = field(default_factory=list)
    users: list[int] = field(default_factory=list)
    named: list[list[set[int]]] = field(default_factory=list)  # [scorers][cuts]
    left_out: int = 0
    ids: int = 0
    invalid: int = 0
    short: int = 0

    def __post_init__(self) -> None:
        self.named = [[set() for _ in CUTS] for _ in self.scorers]

    def lists(self, user: int, lists: list[Int64s], wanted: Int64s) -> None:
        self.values.append([list_metrics(items, wanted) for items in lists])
        self.users.append(user)
        for sets, items in zip(self.named, lists, strict=True):
            for seen, k in zip(sets, CUTS, strict=True):
                seen.update(items[:k].tolist())

    def found(self, found: Found, sids: dict[int, tuple[int, ...]]) -> None:
        self.ids += found.returned
        self.short += found.underflow is not None
        for row in found.rows:
            fits = row.items and all(sids.get(int(item)) == row.sid for item in row.items)
            self.invalid += not fits


def evaluate_generator(
    model: Decoder,
    name: str,
    recipe: Recipe,
    sids: SemanticIds,
    events: Events,
    options: SidEvalOptions,
    ranker: tuple[Ranker, Kernel] | None = None,
    observe: Observe | None = None,
) -> SidEvalReport:
    """Answer the requests of a part with the model, by popularity, by recency and maybe with a ranker.

    All of them name items of the training part's catalogue only.

    Args:
        name: of the model, for the report.
        recipe: of the model; `sids` is the build that it was trained on.
        observe: called with the number of requests done and of all.

    Raises:
        ConfigError: an option is out of range, or the part has no request that can be answered.
    """
    _check(options)
    begun = time.monotonic()
    split = temporal_split(events)
    catalogue = catalogue_before(events, split.train_end_s)
    index = served_index(sids, catalogue)
    seen = seen_rule(options.seen, events, split.train_end_s)
    asked = evaluation_requests(
        events, *requested_part(split, options.part), max_requests=options.max_requests, seed=options.seed
    )
    retriever = SidRetriever(model, recipe, sids, index, options.width)
    scorer = None if ranker is None else RankerScorer(*ranker)
    names = ("generator", "popularity", "recency", *(() if scorer is None else ("ranker",)))
    tally = _Tally(names)
    codes = dict(
        zip(catalogue.items.tolist(), map(tuple, sids.codes_of(catalogue.items).tolist()), strict=True)
    )
    done = unanswerable = 0
    for user, group in groupby(asked, key=lambda request: request.user):
        history = events.history(user)
        items = np.array(history[0])
        for request in group:
            done += 1
            past = items[: request.history_end]
            hidden = past if seen == "drop" else past[:0]
            wanted = wanted_items(events, request, catalogue)
            wanted = wanted[~np.isin(wanted, hidden)]
            start, stop = request.positives
            tally.left_out += len(np.unique(items[start:stop])) - len(wanted)
            if not len(wanted):
                unanswerable += 1
                continue
            found = retriever.find(past, _deny(index, hidden, catalogue))
            tally.found(found, codes)
            generated = np.array([item for row in found.rows for item in row.items], dtype=np.int64)[:LONGEST]
            lists = [
                generated,
                popular(catalogue, hidden, LONGEST),
                recent(catalogue, past, hidden, LONGEST),
            ]
            if scorer is not None:
                lists += ranked(scorer, catalogue, UserEvents.of(history), [request], [hidden], LONGEST)
            tally.lists(user, lists, wanted)
            if observe is not None:
                observe(done, len(asked))
    if not tally.values:
        raise ConfigError("part", f"{options.part!r} of {events.path} has no request that can be answered")
    values = np.array(tally.values)  # [requests, scorers, metrics]
    users = np.array(tally.users, dtype=np.int64)
    return SidEvalReport(
        data=events.meta.name,
        model=name,
        sids=recipe.sids,
        train_end_s=split.train_end_s,
        valid_end_s=split.valid_end_s,
        options=options,
        seen=seen,
        catalogue_items=len(catalogue),
        requests=len(values),
        users=len(set(tally.users)),
        unanswerable_requests=unanswerable,
        left_out_items=tally.left_out,
        ids_named=tally.ids,
        invalid_share=tally.invalid / max(tally.ids, 1),
        short_results=tally.short,
        seconds=round(time.monotonic() - begun, 3),
        metrics=SID_METRICS,
        coverage=tuple(
            Coverage(scorer=scorer, at=tuple(len(each) / len(catalogue) for each in sets))
            for scorer, sets in zip(names, tally.named, strict=True)
        ),
        estimates=_estimates(values, users, names, options.seed),
    )


def _estimates(values: Floats, users: Int64s, names: tuple[str, ...], seed: int) -> tuple[Estimate, ...]:
    """All means, and the differences generator minus each other scorer, over requests and over users."""
    found: list[Estimate] = []
    flat = values.reshape(len(values), -1)
    for over in ("requests", "users"):
        sampled = resample(flat, users, over == "users", seed)
        for m, metric in enumerate(SID_METRICS):
            for s, name in enumerate(names):
                column = s * len(SID_METRICS) + m
                pairs = [(name, "", sampled.observed[column], sampled.draws[:, column])]
                if s:
                    gain = sampled.draws[:, m] - sampled.draws[:, column]
                    pairs.append((names[0], name, sampled.observed[m] - sampled.observed[column], gain))
                for scorer, minus, mean, draws in pairs:
                    low, high = interval(draws)
                    found.append(
                        Estimate(
                            scorer=scorer,
                            minus=minus,
                            metric=metric,
                            over=over,
                            mean=float(mean),
                            low=low,
                            high=high,
                        )
                    )
    return tuple(found)


def _deny(index: CatalogueIndex, hidden: Int64s, catalogue: Catalogue) -> Filter | None:
    if not len(hidden):
        return None
    known = np.unique(hidden[catalogue.knows(hidden)])
    return make_filter(index, Wanted(deny=tuple(known.tolist())))


def _check(options: SidEvalOptions) -> None:
    if options.max_requests is not None and options.max_requests < 1:
        raise ConfigError("max_requests", f"{options.max_requests} must be at least 1")
    if not 1 <= options.width <= 1 << 16:
        raise ConfigError("width", f"{options.width} must be in [1, {1 << 16}]")
    if options.seed < 0:
        raise ConfigError("seed", f"{options.seed} must not be negative")
