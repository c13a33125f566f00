"""The evaluation of a stored ranker on the requests after a split, from folder to report."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.data.split import Split, evaluation_requests, temporal_split
from relaygr.kernels.interface import Kernel
from relaygr.models.ranker import Ranker
from relaygr.training.candidates import OWN_SHARE, CandidateSource, Mode, Seen, SeenOption, mix, seen_rule
from relaygr.training.catalogue import catalogue_before
from relaygr.training.evaluate import Estimate, Observe, estimates, replay
from relaygr.training.scoring import RankerScorer

Part = Literal["test", "valid"]


class EvalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to evaluate; equal options give equal requests and candidates.

    Attributes:
        max_requests: a uniform sample of so many requests; None takes all.
        negatives: per request, with sampled candidates.
        seen: whether items of the user's earlier events may be candidates; see `candidates.seen_rule`.
        own_share: of the sampled negatives, from the user's last events.
    """

    part: Part = "test"
    candidates: Mode = "sampled"
    seen: SeenOption = "auto"
    own_share: float = OWN_SHARE
    negatives: int = 100
    max_requests: int | None = None
    seed: int = 0


class EvalReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was ranked and how well.

    Attributes:
        seen: the rule that was followed.
        requests, users: that were ranked.
        left_out_positives: positives outside the candidates; they count nowhere.
        unrankable_requests: requests without a positive or a negative among the candidates.
        estimates: every mean and difference, with intervals from a bootstrap over users.
    """

    data: str
    model: str
    train_end_s: int
    valid_end_s: int
    options: EvalOptions
    seen: Seen
    negatives_mix: str
    catalogue_items: int
    history_limit: int
    requests: int
    users: int
    left_out_positives: int
    unrankable_requests: int
    seconds: float
    estimates: tuple[Estimate, ...]


def requested_part(split: Split, part: Part) -> tuple[int, int]:
    """Seconds [from, until) of a part."""
    if part == "valid":
        return split.train_end_s, split.valid_end_s
    return split.valid_end_s, (1 << 63) - 1


def evaluate_ranker(
    model: Ranker,
    name: str,
    events: Events,
    kernel: Kernel,
    options: EvalOptions,
    observe: Observe | None = None,
    total: Observe | None = None,
) -> EvalReport:
    """Rank the requests of a part with `model`, popularity and recency.

    Args:
        name: of the model, for the report.
        observe, total: called with the number of requests done, and once with the number of all.

    Raises:
        ConfigError: an option is out of range, or the part has no requests to rank.
    """
    if options.max_requests is not None and options.max_requests < 1:
        raise ConfigError("max_requests", f"{options.max_requests} must be at least 1")
    if options.seed < 0:
        raise ConfigError("seed", f"{options.seed} must not be negative")
    begun = time.monotonic()
    split = temporal_split(events)
    catalogue = catalogue_before(events, split.train_end_s)
    seen = seen_rule(options.seen, events, split.train_end_s)
    source = CandidateSource(
        options.candidates, catalogue, options.negatives, options.seed, seen, options.own_share
    )
    requests = evaluation_requests(
        events,
        *requested_part(split, options.part),
        max_requests=options.max_requests,
        seed=options.seed,
    )
    if not requests:
        raise ConfigError("part", f"{options.part!r} of {events.path} has no request with an earlier event")
    if total is not None:
        total(len(requests))
    scorer = RankerScorer(model, kernel)
    outcome = replay(events, requests, source, scorer, observe)
    return EvalReport(
        data=events.meta.name,
        model=name,
        train_end_s=split.train_end_s,
        valid_end_s=split.valid_end_s,
        options=options,
        seen=seen,
        negatives_mix=mix(seen, options.own_share) if options.candidates == "sampled" else "",
        catalogue_items=len(catalogue),
        history_limit=scorer.limit,
        requests=len(outcome.users),
        users=len(set(outcome.users.tolist())),
        left_out_positives=outcome.left_out,
        unrankable_requests=outcome.unrankable,
        seconds=round(time.monotonic() - begun, 3),
        estimates=estimates(outcome, options.seed),
    )
