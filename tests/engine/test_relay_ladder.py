"""What a ranking gets in the time that is left: all of its history, a part, or none; never an error."""

from __future__ import annotations

from typing import Any

import pytest
from relay_rig import FULL, Rig, longer, rig, user
from scheduler_fakes import PATIENCE_S

from relaygr.config.relay import RelayConfig
from relaygr.core.errors import DeadlineError
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import RankJob
from relaygr.engine.requests import RankRequest, RankResult
from relaygr.relay.budgets import FIXED_BUDGETS
from relaygr.relay.latency import Coefficients, LatencyModel
from relaygr.serving.answers import path_of
from relaygr.serving.pace import Known, Pace

ONE = user("one")
# One millisecond a pass and a tenth for each row: 16.8 ms for all of ONE; three are kept back.
SPEED = Coefficients(t0_ms=1.0, t1_ms=0.1, t2_ms=0.0, t_launch_ms=0.1)
HOST = {"host_bytes": 4 << 20, "clean_target": 0.4}


def pace(**settings: Any) -> Pace:
    found = Pace(0, RelayConfig(len_bucket_tokens=32, **settings))
    found.follow(Known(LatencyModel(SPEED), FIXED_BUDGETS, 32, 0, 1))
    return found


def answered(r: Rig, job: RankJob) -> tuple[str, int, int]:
    """Path, tokens of the history that were served, and those of them that were computed."""
    result: RankResult = job.future.result(PATIENCE_S)
    history = job.request.history
    if job.kept_events is not None:
        history = history.newest(job.kept_events)
    shown = RankJob(RankRequest(history, job.request.candidates, job.request.query_time), 0.0, 0.0)
    r.right(shown, result)
    r.rest()
    served = result.served
    return path_of(job, result), served.tokens_cached + served.tokens_computed, served.tokens_computed


@pytest.mark.parametrize(
    ("budget_ms", "path", "tokens"),
    [
        (None, "full", FULL),
        (19.9, "full", FULL),
        (19.7, "truncated", 128),
        (10.0, "truncated", 32),
        (8.0, "truncated", 32),
        (7.9, "degraded", 0),
        (1.0, "degraded", 0),
    ],
)
def test_nothing_is_cached(budget_ms: float | None, path: str, tokens: int) -> None:
    with rig(fit=pace().fit) as r:
        assert answered(r, r.ask(ONE, budget_ms=budget_ms)) == (path, tokens, tokens)


def test_the_longest_part_that_fits_is_served() -> None:
    for budget_ms in range(1, 21):
        usable = (budget_ms - FIXED_BUDGETS.guard_ms - 1.0) * 10 - 8
        want = FULL if usable >= FULL else max(int(usable) // 32 * 32, 0)
        with rig(fit=pace().fit) as r:
            assert answered(r, r.ask(ONE, budget_ms=float(budget_ms)))[1] == want


@pytest.mark.parametrize("budget_ms", [8.0, 7.1, 6.9, 1.0])
def test_what_is_cached_is_gone_on_from(budget_ms: float) -> None:
    """Of 150 tokens 128 are there: 22 and 8 candidates take four milliseconds."""
    with rig(fit=pace().fit) as r:
        r.rank(user("one", 128))
        one = longer(user("one", 128), 22)
        found = answered(r, r.ask(one, budget_ms=budget_ms))
        if budget_ms > 7:
            assert found == ("resumed", FULL, 22)
        else:
            assert found == ("degraded", 0, 0)
            assert r.cached(one) == (128, 0)


@pytest.mark.parametrize("signalled", [False, True])
def test_a_hit_is_read_however_little_is_left(signalled: bool) -> None:
    with rig(fit=pace().fit) as r:
        if signalled:
            r.prepare(ONE)
        else:
            r.rank(ONE)
        assert answered(r, r.ask(ONE, budget_ms=1.0)) == ("hit", FULL, 0)


@pytest.mark.parametrize(("copy_threads", "wait_ms"), [(0, 0.0), (0, 2.0), (1, 2.0)])
def test_what_the_host_has_counts_as_there(copy_threads: int, wait_ms: float) -> None:
    """A thread that copies has until half of the budget, in real time; after the budget, of the deadline."""
    with rig(fit=pace().fit, host=HOST | {"copy_threads": copy_threads}) as r:
        r.rank(ONE)
        r.crowd(3)
        assert answered(r, waited(r, ONE, wait_ms, budget_ms=1.0)) == ("reloaded", FULL, 0)


def test_a_part_takes_no_place_in_the_cache() -> None:
    with rig(fit=pace().fit) as r:
        r.prepare(user("one", 64))
        one = longer(user("one", 64), 86)
        assert answered(r, r.ask(one, budget_ms=10.0)) == ("truncated", 32, 32)
        assert r.cached(one) == (64, 0)
        assert r.engine.cache_stats().entries == 1


def waited(r: Rig, one: UserHistory, wait_ms: float, **limits: float) -> RankJob:
    """A ranking that waited for a step."""
    r.brake.stop()
    r.signal(user(f"other-{r.brake.steps}", 10))
    r.brake.await_step()
    job = r.ask(one, **limits)
    r.advance(wait_ms / 1000)
    r.brake.release()
    return job


@pytest.mark.parametrize(
    ("wait_ms", "path"), [(0.0, "full"), (5.0, "truncated"), (18.0, "degraded"), (500.0, "degraded")]
)
def test_waiting_counts_against_the_budget(wait_ms: float, path: str) -> None:
    with rig(fit=pace().fit) as r:
        assert answered(r, waited(r, ONE, wait_ms, budget_ms=20.0))[0] == path


def test_only_after_the_deadline_there_is_no_answer() -> None:
    with rig(fit=pace().fit) as r:
        job = waited(r, ONE, 99.0, budget_ms=20.0, deadline_ms=100.0)
        assert answered(r, job)[0] == "degraded"
        late = waited(r, ONE, 101.0, budget_ms=20.0, deadline_ms=100.0)
        assert isinstance(late.future.exception(PATIENCE_S), DeadlineError)


def test_without_a_ladder_all_is_read() -> None:
    with rig(fit=pace(fallback_mode="full").fit) as r:
        assert answered(r, r.ask(ONE, budget_ms=1.0)) == ("full", FULL, FULL)


@pytest.mark.parametrize("events", [0, 31])
def test_short_histories_have_no_part(events: int) -> None:
    with rig(fit=pace().fit) as r:
        path, tokens, _ = answered(r, r.ask(user("one", events), budget_ms=4.0))
        assert (path, tokens) == ("degraded" if events else "full", 0)
        assert answered(r, r.ask(user("one", events), budget_ms=10.0))[1] == events


@pytest.mark.parametrize(("budget_ms", "found"), [(19.9, ("full", FULL, FULL)), (1.0, ("degraded", 0, 0))])
def test_after_a_damaged_reload_there_is_an_answer_all_the_same(
    budget_ms: float, found: tuple[str, int, int]
) -> None:
    """In its budget: what the load does not give is computed as far as there is time."""
    with rig(fit=pace().fit, host=HOST) as r:
        r.rank(ONE)
        r.crowd(3)
        carrier = r.engine._tiers._carrier
        assert carrier is not None
        carrier._mover.host.keys.add_(1.0)
        assert answered(r, r.ask(ONE, budget_ms=budget_ms)) == found
