"""Replays against a model that holds lists of tokens, and all that they count."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from cache_traces import trace_of
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.cache.policies import POLICIES, make
from relaygr.cache.policy import Policy, Victim, Weight
from relaygr.core.errors import ConfigError
from relaygr.sim.cache.generator import TraceSpec, generate
from relaygr.sim.cache.hits import PLAIN_COSTS, Costs, ceiling
from relaygr.sim.cache.replay import Replay, prepare, replay
from relaygr.sim.cache.trace import Trace

FULL = 10**12


def served(trace: Trace, name: str, capacity: int, token_bytes: int = 1, page_tokens: int = 1) -> Replay:
    course = prepare(trace, PLAIN_COSTS, token_bytes, page_tokens)
    return replay(course, make(name, capacity), capacity)


class Watched(Policy[int]):
    """LRU that checks how it is spoken to, and keeps what it was told."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self.entries: OrderedDict[int, Weight] = OrderedDict()
        self.parked: set[int] = set()
        self.touched: list[int] = []
        self.said: list[tuple[int, Weight]] = []

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: object) -> bool:
        return key in self.entries

    def insert(self, key: int, weight: Weight) -> None:
        assert self.touched[-1] == key
        self.entries[key] = weight
        self.said.append((key, weight))
        assert sum(one.nbytes for one in self.entries.values()) <= self.capacity_bytes

    def touch(self, key: int) -> None:
        assert not self.parked
        self.touched.append(key)
        if key in self.entries:
            self.entries.move_to_end(key)

    def remove(self, key: int) -> None:
        del self.entries[key]

    def forget(self, key: int) -> None:
        raise AssertionError("nobody is forgotten in a replay")

    def park(self, key: int) -> None:
        assert key in self.entries
        self.parked.add(key)

    def unpark(self, key: int) -> None:
        self.parked.remove(key)

    def evict(self) -> Victim[int] | None:
        key = next((one for one in self.entries if one not in self.parked), None)
        if key is None:
            return None
        del self.entries[key]
        return Victim(key)


def test_what_a_policy_is_told() -> None:
    trace = trace_of([(0, 100), (1, 100), (0, 110), (2, 60), (1, 100)])
    policy = Watched(250)
    replay(prepare(trace, Costs(t_load=0.5)), policy, 250)
    assert policy.touched == [0, 1, 0, 2, 1]
    cost = [one + one * (one + 1) / 2 / 4096 for one in (100, 110, 60)]
    full, grown, other = (
        Weight(nbytes, nbytes, rec, 0.5 * nbytes) for nbytes, rec in zip((100, 110, 60), cost, strict=True)
    )
    # 1 leaves for 2, then 0 for 1.
    assert policy.said == [(0, full), (1, full), (0, grown), (2, other), (1, full)]
    assert list(policy.entries) == [2, 1]


def test_a_history_does_not_push_out_itself() -> None:
    trace = trace_of([(0, 100), (1, 100), (0, 180), (0, 190), (1, 100)])
    policy = Watched(200)
    found = replay(prepare(trace, PLAIN_COSTS), policy, 200)
    assert found.hits.all.requests == 4  # the first is warm-up
    assert found.hits.all.token_hit == pytest.approx((0 + 100 + 180 + 0) / (100 + 180 + 190 + 100))
    assert found.moves.evictions == 2


def test_bytes_that_move() -> None:
    """After a warm-up of two: a hit that grows, one that drops the other user, and a return from nothing."""
    trace = trace_of([(0, 100), (1, 50), (0, 120), (0, 180), (1, 50), (1, 60)])
    found = served(trace, "lru", 4 * 200, token_bytes=4)
    assert found.moves.loaded_bytes == 4 * (100 + 120 + 0 + 50)
    assert found.moves.stored_bytes == 4 * (20 + 60 + 50 + 10)
    assert found.moves.dropped_bytes == 4 * (50 + 180)
    assert (found.moves.evictions, found.moves.refused, found.users_end) == (2, 0, 1)


def test_histories_take_whole_pages() -> None:
    trace = trace_of([(user, 33) for user in (0, 1, 2)] * 3)
    # 33 tokens are two pages of 32: three users take 192 tokens, and one less is too little.
    assert served(trace, "lru", 6 * 192, 6, 32).hits.all.request_hit == 1
    assert served(trace, "lru", 6 * 192 - 1, 6, 32).hits.all.request_hit == 0
    assert served(trace, "lru", 6 * 99, 6, 1).hits.all.request_hit == 1


def test_what_fits_nowhere_is_refused_and_moves_nobody() -> None:
    trace = trace_of([(0, 10), (1, 500), (0, 10), (1, 500), (0, 10), (0, 600), (0, 600)])
    found = served(trace, "lru", 100)
    assert (found.moves.refused, found.moves.stored_bytes) == (3, 0)
    # The last but one had its first tokens there; then nothing of it stayed.
    assert found.hits.all.tokens == 10 + 500 + 10 + 600 + 600
    assert found.moves.loaded_bytes == 10 + 10 + 10
    assert (found.users_end, found.moves.dropped_bytes) == (0, 10)


def test_a_shorter_request_uses_the_beginning_and_keeps_the_rest() -> None:
    trace = trace_of([(0, 100), (0, 40), (0, 100)])
    found = served(trace, "lru", FULL)
    assert found.hits.all.token_hit == 1
    assert found.moves.stored_bytes == 0


def test_reuse_ends_where_a_history_was_changed() -> None:
    # A token at place 30 changed, then 60 tokens came of which none fit what was there before.
    trace = trace_of([(0, 100), (0, 100), (0, 100)], same=[0, 30, 100])
    assert served(trace, "lru", FULL).moves.loaded_bytes == 30 + 100
    # What was cut off by a change does not come back, though the entry was longer.
    shorter = trace_of([(0, 100), (0, 50), (0, 100)], same=[0, 30, 50])
    assert served(shorter, "lru", FULL).moves.loaded_bytes == 30 + 50


def test_a_policy_that_keeps_a_part() -> None:
    """T-LRU cuts the tail of 1,200 to 707; the next request computes the rest."""
    trace = trace_of([(0, 1200), (1, 700), (0, 1210)])
    found = served(trace, "tlru", 1900 - 1)
    assert found.moves.loaded_bytes == 707
    assert found.moves.dropped_bytes >= 493


@pytest.mark.parametrize("name", POLICIES)
def test_a_tier_without_limits_hits_the_ceiling(name: str) -> None:
    trace = generate(TraceSpec(users=150, edits=0.1, slide=0.25, max_length=1500, scan=0.2, churn=0.2))
    found = served(trace, name, FULL)
    top = ceiling(trace, PLAIN_COSTS, trace.warmup)
    assert found.hits.all == top
    assert found.moves.dropped_bytes == found.moves.evictions == 0
    assert found.users_end == trace.users


@pytest.mark.parametrize("name", POLICIES)
def test_no_tier_hits_more_than_the_ceiling(name: str) -> None:
    trace = generate(TraceSpec(users=150, scan=0.3, edits=0.05))
    top = ceiling(trace, PLAIN_COSTS, trace.warmup)
    last = 0.0
    for share in (0.02, 0.1, 0.5):
        hits = served(trace, name, int(share * trace.footprint_tokens)).hits.all
        assert 0 < hits.request_hit <= top.request_hit
        assert hits.token_hit <= top.token_hit
        assert last < hits.cost_hit <= top.cost_hit
        last = hits.cost_hit


def test_a_replay_is_the_same_again_and_for_bytes_as_for_tokens() -> None:
    trace = generate(TraceSpec(users=150, scan=0.3))
    one = served(trace, "gd_cost", 20_000)
    assert one == served(trace, "gd_cost", 20_000)
    assert one.hits == served(trace, "gd_cost", 20_000 * 4096, token_bytes=4096).hits


Step = tuple[int, int, float]
STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30), st.floats(0, 1)), min_size=3, max_size=60)


@given(steps=STEPS, capacity=st.integers(1, 80))
@settings(max_examples=150, deadline=None)
def test_lru_against_lists_of_tokens(steps: list[Step], capacity: int) -> None:
    """Users whose histories grow, shrink and change, as the tokens themselves."""
    content: dict[int, list[int]] = {}
    held: OrderedDict[int, list[int]] = OrderedDict()
    rows, same, expected, fresh = [], [], [], iter(range(10**6))
    for user, length, cut in steps:
        before = content.get(user, [])
        kept = before[: min(length, int(cut * len(before)) if cut < 0.3 else len(before))]
        tokens = kept + [next(fresh) for _ in range(length - len(kept))]
        rows.append((user, length))
        same.append(len(kept))
        if len(kept) < length:
            content[user] = tokens
        entry = held.get(user, [])
        common = 0
        while common < min(len(entry), length) and entry[common] == tokens[common]:
            common += 1
        expected.append(common)
        if user in held:
            held.move_to_end(user)
        if common < length:
            held.pop(user, None)
            if length <= capacity:
                while sum(map(len, held.values())) + length > capacity:
                    held.popitem(last=False)
                held[user] = tokens
        elif user not in held and not length:
            held[user] = []
    users = sorted({user for user, _ in rows})
    trace = trace_of([(users.index(user), length) for user, length in rows], same=same)
    found = served(trace, "lru", capacity)
    assert found.moves.loaded_bytes == sum(expected[trace.warmup :])
    hits = np.count_nonzero(np.array(expected[trace.warmup :]))
    assert found.hits.all.request_hit == pytest.approx(hits / (len(trace) - trace.warmup))


@pytest.mark.parametrize(("field", "value"), [("token_bytes", 0), ("page_tokens", 2**30 + 1)])
def test_bad_sizes(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"replay\.{field}: {value} must be in \[1, 1073741824\]"):
        prepare(trace_of([(0, 1)]), PLAIN_COSTS, **{field: value})
