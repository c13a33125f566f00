"""Rankings of a soak scored again by engines in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relaygr.bench.soak_people import Sample
from relaygr.core.errors import RequestError
from relaygr.engine import Engine, RankRequest, UserHistory

TOLERANCE = 1e-5


def wrong_rankings(samples: Sequence[Sample], engines: Mapping[str, Engine]) -> list[str]:
    """One line for each answer that the engine of its model does not give.

    Args:
        engines: by the fingerprint of their weights, hexadecimal; in float32, as the server.
    """
    return [text for sample in samples if (text := _difference(sample, engines))]


def _difference(sample: Sample, engines: Mapping[str, Engine]) -> str:
    engine = engines.get(sample.model)
    if engine is None:
        return f"{sample.user}: scored by {sample.model}, which is no model of this run"
    if sample.path != "truncated" and sample.served_tokens != sample.events:
        return f"{sample.user}: served from {sample.served_tokens} tokens of {sample.events}"
    try:
        history = UserHistory(sample.user, sample.items[: sample.events], sample.times[: sample.events])
        read = history.newest(sample.served_tokens)
        wanted = engine.rank(RankRequest(read, sample.candidates, keep=False)).logits
    except RequestError as error:
        return f"{sample.user}: was answered, but {error}"
    got = np.asarray(sample.scores, np.float32)
    if got.shape != wanted.shape:
        return f"{sample.user}: scores have shape {got.shape}, not {wanted.shape}"
    gap = float(np.max(np.abs(got - wanted) / np.maximum(np.abs(wanted), 1.0), initial=0.0))
    if gap <= TOLERANCE:  # false for NaN too
        return ""
    return f"{sample.user}: a score is off by {gap:.2g} ({sample.path}, {sample.events} events)"
