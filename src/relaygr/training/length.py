"""How ranking quality depends on the length of the history a ranker reads, from models to a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from relaygr.core.errors import ConfigError
from relaygr.core.ids import Fingerprint
from relaygr.data.dataset import Events
from relaygr.data.split import EvalRequest, Split, evaluation_requests, temporal_split
from relaygr.kernels.interface import Kernel
from relaygr.models.ranker import Ranker
from relaygr.training.candidates import OWN_SHARE, CandidateSource, Mode, Seen, SeenOption, mix, seen_rule
from relaygr.training.cap_estimates import CapEstimate, SegmentSize, cap_estimates, sizes
from relaygr.training.cap_replay import CapScorers, calibrate, replay_caps
from relaygr.training.catalogue import Catalogue, catalogue_before
from relaygr.training.offline import Part, requested_part
from relaygr.training.segments import segments

Observe = Callable[[str, int, int], None]  # what, done, of how many


class LengthOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to evaluate; equal options give equal requests and candidates.

    Attributes:
        caps: a model reads exactly so many newest events, or all where there are fewer; ascending.
        seen: whether items of the user's earlier events may be candidates; see `candidates.seen_rule`.
        negatives: per request, with sampled candidates.
        own_share: of these, from the user's last events.
        max_requests, calibration_requests: uniform samples of so many requests; None takes all.
    """

    caps: tuple[int, ...]
    part: Part = "test"
    candidates: Mode = "sampled"
    seen: SeenOption = "auto"
    negatives: int = 100
    own_share: float = OWN_SHARE
    max_requests: int | None = None
    calibration_requests: int | None = 1000
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class NamedModel:
    """A ranker, what the report calls it, and the fingerprint of its files."""

    name: str
    ranker: Ranker
    fingerprint: Fingerprint


class ModelNote(msgspec.Struct, frozen=True, kw_only=True):
    """One model: the most events it can read, and its calibration (see `training.calibration`)."""

    name: str
    fingerprint: str
    history_limit: int
    slope: float
    intercept: float


class LengthReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was ranked and how well, at every cap.

    Attributes:
        seen: the rule that was followed.
        segments: by the number of events that the user had before the request.
        left_out_positives: positives outside the candidates; they count nowhere.
        unrankable_requests: requests without a positive or a negative among the candidates.
    """

    data: str
    train_end_s: int
    valid_end_s: int
    options: LengthOptions
    seen: Seen
    negatives_mix: str
    catalogue_items: int
    models: tuple[ModelNote, ...]
    segments: tuple[SegmentSize, ...]
    left_out_positives: int
    unrankable_requests: int
    seconds: float
    estimates: tuple[CapEstimate, ...]


def check_caps(caps: Sequence[int], limit: int, whose: str) -> None:
    """Raise ConfigError unless `caps` ascend within [1, limit], the events that `whose` can read."""
    if not caps:
        raise ConfigError("caps", "none given, need at least 1")
    for cap, before in zip(caps, (0, *caps), strict=False):
        if cap < 1:
            raise ConfigError("caps", f"{cap} must be at least 1")
        if cap <= before:
            raise ConfigError("caps", f"{cap} after {before}: caps must ascend")
        if cap > limit:
            raise ConfigError("caps", f"{cap} is more than the {limit} events that {whose} can read")


def evaluate_lengths(
    models: Sequence[NamedModel],
    events: Events,
    kernel: Kernel,
    options: LengthOptions,
    observe: Observe | None = None,
) -> LengthReport:
    """Rank the requests of a part with every model at every cap, each request with the same candidates.

    Probabilities are calibrated on the validation part with the longest history each model can read, and
    the same two numbers serve every cap. With `part` "valid" the fit has seen what it is measured on.

    Raises:
        ConfigError: an option is out of range, or there are no requests to rank or to calibrate on.
    """
    _check(models, options)
    begun = time.monotonic()
    split = temporal_split(events)
    catalogue = catalogue_before(events, split.train_end_s)
    seen = seen_rule(options.seen, events, split.train_end_s)
    requests = _requests(events, split, options.part, options.max_requests, options.seed)
    fitted_on = _requests(events, split, "valid", options.calibration_requests, options.seed)
    rankers, notes = [], []
    source = _source(options, catalogue, seen)
    for model in models:
        watch = _watch(observe, f"calibrate {model.name}", len(fitted_on))
        fit = calibrate(events, fitted_on, source, model.ranker, kernel, watch)
        rankers.append(CapScorers(model.ranker, kernel, options.caps, fit))
        notes.append(
            ModelNote(
                name=model.name,
                fingerprint=model.fingerprint.hex(),
                history_limit=model.ranker.config.max_history,
                slope=fit.slope,
                intercept=fit.intercept,
            )
        )
    outcome = replay_caps(events, requests, source, rankers, _watch(observe, "rank", len(requests)))
    parts = segments(options.caps)
    return LengthReport(
        data=events.meta.name,
        train_end_s=split.train_end_s,
        valid_end_s=split.valid_end_s,
        options=options,
        seen=seen,
        negatives_mix=mix(seen, options.own_share) if options.candidates == "sampled" else "",
        catalogue_items=len(catalogue),
        models=tuple(notes),
        segments=sizes(outcome, parts),
        left_out_positives=outcome.left_out,
        unrankable_requests=outcome.unrankable,
        seconds=round(time.monotonic() - begun, 3),
        estimates=cap_estimates(outcome, options.caps, parts, options.seed),
    )


def _check(models: Sequence[NamedModel], options: LengthOptions) -> None:
    if not models:
        raise ConfigError("models", "none given, need at least 1")
    for model in models:
        check_caps(options.caps, model.ranker.config.max_history, f"model {model.name}")
    for name in ("max_requests", "calibration_requests"):
        count = getattr(options, name)
        if count is not None and count < 1:
            raise ConfigError(name, f"{count} must be at least 1")
    if options.seed < 0:
        raise ConfigError("seed", f"{options.seed} must not be negative")


def _source(options: LengthOptions, catalogue: Catalogue, seen: Seen) -> CandidateSource:
    return CandidateSource(
        options.candidates, catalogue, options.negatives, options.seed, seen, options.own_share
    )


def _requests(events: Events, split: Split, part: Part, most: int | None, seed: int) -> list[EvalRequest]:
    found = evaluation_requests(events, *requested_part(split, part), max_requests=most, seed=seed)
    if not found:
        raise ConfigError("part", f"{part!r} of {events.path} has no request with an earlier event")
    return found


def _watch(observe: Observe | None, what: str, total: int) -> Callable[[int], None] | None:
    return None if observe is None else lambda done: observe(what, done, total)
