"""Lengths, ids and times at their edges, on every way that a prefix can take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relay_rig import CANDIDATES, FULL, SHAPE, Rig, longer, rig, user
from scheduler_fakes import PATIENCE_S

from relaygr.core.errors import RequestError
from relaygr.engine.history import UserHistory
from relaygr.engine.jobs import Admission
from relaygr.engine.requests import Path, RankRequest

HOST = {"host_bytes": 4 << 20, "clean_target": 0.4}
EDGES = (0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, SHAPE.max_history - 1, SHAPE.max_history)


def every_way(r: Rig, one: UserHistory) -> None:
    """Cold, signalled, hit, spilled and reloaded: each answer is that of a pass without a cache."""
    r.rank(one)
    r.prepare(one)
    r.rank(one)
    r.crowd(3)
    r.rank(one)
    r.crowd(3, first=3)
    r.prepare(one)
    assert r.rank(one).served.tokens_computed == 0


@pytest.mark.parametrize("events", EDGES)
def test_r11_lengths_at_the_edges_of_pages(events: int) -> None:
    with rig(host=HOST) as r:
        every_way(r, user("one", events))


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 2 * SHAPE.max_history), min_size=1, max_size=3))
def test_r11_r15_histories_that_grow_past_the_window(growth: list[int]) -> None:
    with rig(host=HOST) as r:
        one = user("one", 1)
        for number, count in enumerate(growth):
            one = longer(one, count, number)
            if number % 2:
                r.prepare(one)
            r.rank(one)
            r.crowd(2)


def test_r12_candidates_are_no_part_of_a_prefix() -> None:
    with rig() as r:
        one = user("one")
        r.prepare(one)
        before = r.engine.ref(one)
        for candidates in ((), (1,), CANDIDATES, CANDIDATES[::-1], (5,) * 40):
            answer = r.rank(one, candidates)
            assert (answer.served.path, answer.served.tokens_computed) == (Path.HIT, 0)
        assert r.engine.ref(one) == before
        assert r.engine.cache_stats().entries == 1


def test_r13_whatever_changes_in_a_prefix_is_a_miss_from_there_on() -> None:
    one = user("one", 100)
    for at, cached in ((0, 0), (31, 0), (32, 32), (99, 96)):
        with rig() as r:
            r.prepare(one)
            items = one.items.copy()
            items[at] += 1
            other = UserHistory("one", items, one.timestamps, one.actions)
            # Content is compared by pages, and token by token within the first that differs.
            assert cached <= r.cached(other)[0] <= at
            r.rank(other)


def test_r14_order_copies_and_mates_change_no_score() -> None:
    with rig() as r:
        one = user("one")
        r.prepare(one)
        plain = r.rank(one, CANDIDATES).logits
        turned = r.rank(one, CANDIDATES[::-1]).logits[::-1]
        doubled = r.rank(one, CANDIDATES * 2 + (99,)).logits
        assert np.abs(turned - plain).max() <= 1e-5
        assert np.abs(doubled[:8] - plain).max() <= 1e-5
        assert np.abs(doubled[8:16] - plain).max() <= 1e-5
        r.brake.stop()
        r.signal(user("busy", 5))
        r.brake.await_step()
        mates = [r.ask(user(f"m{number}", 10 * number)) for number in range(5)]
        job = r.ask(one)
        r.brake.release()
        assert np.abs(job.future.result(PATIENCE_S).logits - plain).max() <= 1e-5
        for mate in mates:
            r.right(mate, mate.future.result(PATIENCE_S))


def test_a_batch_of_rows_that_are_all_shorter_than_a_page() -> None:
    with rig(host=HOST) as r:
        users = [user(f"u{events}", events) for events in (0, 1, 2, 5, 30)]
        for one in users:
            r.signal(one)
        for job in [r.ask(one) for one in users]:
            r.right(job, job.future.result(PATIENCE_S))
        r.rest()
        for one in users:
            assert r.rank(one).served.tokens_computed == 0


def test_ids_of_63_bits() -> None:
    ids = [0, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1]
    with rig(host=HOST) as r:
        one = UserHistory("one", ids * 10, list(range(1_000, 1_060)), [1] * 60)
        r.prepare(one)
        assert r.rank(one, ids).served.path is Path.HIT
        # Neighbours that a float could not tell apart are different prefixes.
        near = UserHistory("one", [*ids[:4], 2**53 + 2, *(ids * 10)[5:]], one.timestamps, one.actions)
        assert r.cached(near)[0] <= 4
        r.rank(near, ids)


def test_equal_times_are_kept_and_unsorted_ones_refused() -> None:
    with rig() as r:
        one = UserHistory("one", list(range(40)), [7] * 40, [1] * 40)
        assert r.prepare(one).admission is Admission.ADMITTED
        assert r.rank(one).served.path is Path.HIT
        with pytest.raises(RequestError, match="timestamps"):
            UserHistory("one", [1, 2], [2, 1])
        with pytest.raises(RequestError, match="before the last event"):
            one.append([1], [6])


def test_an_empty_batch_and_nothing_to_rank() -> None:
    with rig() as r:
        assert r.engine.rank_batch([]) == []
        assert r.engine.prefetch_batch([]) == []
        answer = r.engine.rank(RankRequest(user("one", FULL), ()))
        assert answer.logits.shape == (0, len(SHAPE.tasks))
