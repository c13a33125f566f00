"""M27: the policies against another implementation of them, on two recorded traces and one made up.

Exact, visit by visit, where both follow the same rules; else within a tolerance, stated with its reason.
What the other one has not, costs and cut entries, is compared with the plainest form on the same traces.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from policy_play import Play, users
from policy_reference import REFERENCES

from relaygr.cache.policies import PolicySettings, make

peer = pytest.importorskip("libcachesim")

Trace = tuple[tuple[Hashable, int], ...]
SHARES = (0.02, 0.1, 0.25)
VISITS = 8000


class Case(NamedTuple):
    """How to make both alike, and how far the hit ratios may be apart; 0 is no visit that differs.

    Attributes:
        forget_victims: the other one knows nothing of what has left.
        insert_first: the other one gives a newcomer its key before others leave for it.
        blocks: the tolerance on the recorded traces, of blocks of one size.
        sizes: on the one with sizes.
    """

    name: str
    maker: Callable[[Any, int], Any]
    settings: PolicySettings = PolicySettings()
    forget_victims: bool = False
    insert_first: bool = False
    blocks: float = 0.0
    sizes: float = 0.0


def _slru(lib: Any, capacity: int) -> Any:
    native = lib.libcachesim_python
    params = native.CommonCacheParams(cache_size=capacity, default_ttl=86_400 * 300, hashpower=16)
    return lib.CacheBase(_cache=native.SLRU_init(params, "n-seg=2,seg-size=2:8"))


# Every visit counts the same, for ever, and nothing is known of what left.
ALL_COUNT = PolicySettings(first_touch_weight=1.0, freq_cap=1 << 30, ghost_entries=0, ghost_halve_ops=1 << 40)
CASES = (
    Case("lru", lambda lib, n: lib.LRU(n, hashpower=16)),
    Case("sieve", lambda lib, n: lib.Sieve(n, hashpower=16)),
    Case("lru2", lambda lib, n: lib.LRUK(n, hashpower=16, k=2), forget_victims=True),
    # Keys that are equal up to the rounding of the other one, which has floats.
    Case("gdsf", lambda lib, n: lib.GDSF(n, hashpower=16), insert_first=True, sizes=0.001),
    # Sizes move the border between the two parts in another way.
    Case("arc", lambda lib, n: lib.ARC(n, hashpower=16), sizes=0.01),
    # The other one refuses what is larger than its small queue; and has a ghost more or less.
    Case(
        "s3fifo",
        lambda lib, n: lib.S3FIFO(n, hashpower=16, move_to_main_threshold=2),
        PolicySettings(promote_at=2),
        blocks=0.002,
        sizes=0.01,
    ),
    Case(
        "s3fifo",
        lambda lib, n: lib.S3FIFO(n, hashpower=16, move_to_main_threshold=1),
        blocks=0.002,
        sizes=0.01,
    ),
    # The other one puts newcomers into the protected segment while there is room in it.
    Case("slru", _slru, blocks=0.03, sizes=0.02),
    # The other one refuses what is larger than the 1 % of the capacity that newcomers share.
    Case("lirs", lambda lib, n: lib.LIRS(n, hashpower=16), blocks=0.01, sizes=0.06),
    # Another sketch, halved at other times; the main part fills in another order.
    Case(
        "wtinylfu",
        lambda lib, n: lib.WTinyLFU(n, hashpower=16, window_size=0.2),
        PolicySettings(window_share=0.2),
        blocks=0.025,
        sizes=0.02,
    ),
    # The other one has no costs. Where all cost the same, the cost of a byte is a hit a byte.
    Case("gdsf_cost", lambda lib, n: lib.GDSF(n, hashpower=16), insert_first=True, sizes=0.001),
    Case("gd_cost", lambda lib, n: lib.GDSF(n, hashpower=16), ALL_COUNT, insert_first=True, sizes=0.001),
    # Where a request is never late, all of an entry leaves at once; where it is at once, nothing is cut.
    Case("tlru", lambda lib, n: lib.LRU(n, hashpower=16), PolicySettings(late_tokens=1 << 20)),
    Case("tlru", lambda lib, n: lib.LRU(n, hashpower=16), PolicySettings(late_tokens=0)),
)


@cache
def recorded(path: Path) -> Trace:
    """The blocks of prompts, in the order of their requests; the head of a trace of a day."""
    visits: list[tuple[Hashable, int]] = []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            visits += [(block, 1) for block in json.loads(line)["hash_ids"]]
            if len(visits) >= VISITS:
                break
    return tuple(visits[:VISITS])


@cache
def made_up() -> Trace:
    return tuple(users(0, VISITS, 2000))


@pytest.fixture(params=["mooncake/conversation_trace", "mooncake/synthetic_trace", "users"])
def trace(request: pytest.FixtureRequest, shared_data: Callable[[str], Path]) -> Trace:
    return made_up() if request.param == "users" else recorded(shared_data(f"{request.param}.jsonl.gz"))


def theirs(other: Any, trace: Trace) -> list[bool]:
    visit, hits = peer.Request(), []
    for key, nbytes in trace:
        visit.obj_id, visit.obj_size = key, nbytes
        hits.append(other.get(visit))
    return hits


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.settings.promote_at}")
def test_m27_hits_as_another_implementation(case: Case, trace: Trace) -> None:
    sizes = dict(trace)
    has_sizes = max(sizes.values()) > 1
    tolerance = case.sizes if has_sizes else case.blocks
    for share in SHARES:
        capacity = int(share * sum(sizes.values()))
        play = Play(
            make(case.name, capacity, case.settings),
            capacity,
            forget_victims=case.forget_victims,
            insert_first=case.insert_first,
        )
        ours, other = play.run(trace), theirs(case.maker(peer, capacity), trace)
        assert len(play.victims) > 500
        if not tolerance:
            assert ours == other
        assert sum(ours) / len(ours) == pytest.approx(sum(other) / len(other), abs=tolerance)


@pytest.mark.parametrize("name", ["gdsf_cost", "gd_cost", "tlru"])
def test_m27_victims_by_cost_and_of_parts_as_of_the_plain_form(name: str, trace: Trace) -> None:
    """Sizes are powers of two, so that equal keys are equal in both; costs go by the key."""
    visits = trace[:1500]
    sizes = {
        key: 1 << ((hash(key) % 6 + 5) if nbytes == 1 else nbytes.bit_length()) for key, nbytes in visits
    }
    capacity = max(int(0.1 * sum(sizes.values())), *sizes.values())
    ours = Play(make(name, capacity), capacity)
    plain = Play(REFERENCES[name](capacity), capacity)  # type: ignore[arg-type]
    for key, _ in visits:
        rec_ms = float(2 ** (hash(key) % 7 // 2))
        assert ours.visit(key, sizes[key], rec_ms) == plain.visit(key, sizes[key], rec_ms)
    assert ours.victims == plain.victims
    assert len(ours.victims) > 200
    assert any(victim.keep_tokens for victim in ours.victims) == (name == "tlru")
