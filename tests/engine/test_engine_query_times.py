"""Models whose K/V hold for one request or one pass, and requests with a query time of each candidate."""

from __future__ import annotations

import numpy as np
import pytest
from engine_checks import CANDIDATES, asked, close, counts, ranked_right, user
from engine_models import FAMILIES, KEPT, REMADE, dense_logits, make_engine
from msgspec.structs import replace

from relaygr.core.errors import RequestError
from relaygr.engine.requests import Path, RankRequest, RankResult


@pytest.mark.parametrize("family", REMADE)
def test_a_model_that_rewrites_the_past_is_never_reused(family: str) -> None:
    config = REMADE[family]
    engine = make_engine(config, microbatch=4)
    history = user(config, 70, seed=10)
    prefetched = engine.prefetch(history)
    assert not prefetched.resident
    assert config.cacheable in ("request", "none")
    assert {"request": "request", "none": "pass"}[config.cacheable] in prefetched.uncached_reason
    for later_s in (10, 10, 800_000):
        result = ranked_right(engine, asked(history, later_s=later_s))
        assert counts(result) == (Path.FULL, 0, config.prefix_tokens(70))
    for seed, count in enumerate((0, 1, 39, 40)):
        ranked_right(engine, asked(user(config, count, seed)))
    stats = engine.cache_stats()
    assert stats.free_pages == stats.total_pages
    assert engine.stats().tokens_cached == 0


@pytest.mark.parametrize("family", ["meta-ages-each", "transformer", "meta-stu", "nvidia"])
@pytest.mark.parametrize("microbatch", [2, 64])
def test_one_query_time_a_candidate(family: str, microbatch: int) -> None:
    """Scores equal those of one request a candidate, in request order, whatever the times' order."""
    config = replace(FAMILIES[family], query_times="candidate")
    engine = make_engine(config, microbatch=microbatch)
    history = user(config, 40, seed=12)
    last = int(history.timestamps[-1])
    times = last + np.array([0, 90_000, 0, 3_600, 90_000, 0, 50, 3_600, 0, 0, 7])
    other = user(config, 20, seed=13, name="v")
    batch = [RankRequest(history, CANDIDATES, times), asked(other), RankRequest(other, [], [])]
    for _ in range(2):
        answers = engine.rank_batch(batch)
        for answer, request in zip(answers, batch, strict=True):
            assert isinstance(answer, RankResult)
            assert close(answer.logits, dense_logits(engine, request))
    spread = engine.rank(RankRequest(history, np.full(11, 5), times)).logits
    if family != "nvidia":  # which reads no times
        assert float(np.abs(spread[0] - spread[1]).max()) > 1e-4
    assert close(spread[0], spread[2])


@pytest.mark.parametrize("family", ["nvidia", "meta-stu", "meta-research"])
def test_one_query_time_a_request_is_all_that_other_models_take(family: str) -> None:
    engine = make_engine(KEPT[family])
    history = user(KEPT[family], 5, seed=1)
    times = int(history.timestamps[-1]) + np.arange(len(CANDIDATES))
    answer = engine.rank_batch([RankRequest(history, CANDIDATES, times)])[0]
    assert isinstance(answer, RequestError)
    assert answer.field == "query_time"
