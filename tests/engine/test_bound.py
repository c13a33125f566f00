"""The bound of live prefixes moves to where a miss costs more, and nothing that is live leaves for it."""

import pytest
from relay_rig import FULL_BYTES, PAGE_BYTES, Rig, rig, user

from relaygr.core.units import MIB
from relaygr.engine.requests import Path

ADAPTIVE = {"h_relay_split": "adaptive"}


def refuse(r: Rig, count: int) -> None:
    """So many signals find no room, because one prefix takes all of it."""
    assert r.prepare(user("holder")).reason == ""
    for number in range(count):
        assert r.prepare(user(f"refused-{number}")).reason == "footprint"
    assert r.rank(user("holder")).served.path is Path.HIT


def limit(r: Rig) -> int:
    return r.relay.state().bound_bytes


@pytest.mark.parametrize("split", ["static", "adaptive"])
def test_refused_signals_raise_the_bound(split: str) -> None:
    build = {"latency": None}
    with rig(relay={"h_relay_bytes": FULL_BYTES, "h_relay_split": split}, build=build) as r:
        for _ in range(8):
            refuse(r, 12)
            r.relay._bound.refused(FULL_BYTES, 5.0)  # the build has no known speed, so refusals cost nothing
            r.advance(5.1)
        r.prepare(user("last"))
        r.rank(user("last"))
        assert limit(r) == (FULL_BYTES if split == "static" else FULL_BYTES + 8 * (MIB // 32))


def test_visits_that_find_nothing_lower_it_when_what_is_live_was_used() -> None:
    """What waits for a ranking keeps its bytes until then."""
    host = {"host_bytes": 0, "clean_target": 0.0}
    with rig(relay={"h_relay_bytes": 2 * FULL_BYTES, **ADAPTIVE}, host=host) as r:
        r.prepare(user("live"))
        before = limit(r)
        for turn in range(3):
            for _ in range(10):
                r.relay._bound._split.missed(4.0)
            r.advance(5.1)
            r.prepare(user(f"next-{turn}"))
            r.rank(user(f"next-{turn}"))
        assert limit(r) == before - 3 * (MIB // 32)


def test_misses_of_the_engine_reach_the_split() -> None:
    with rig(relay=ADAPTIVE, device_bytes=64 * PAGE_BYTES) as r:
        small = [user(f"u{number}", 50) for number in range(40)]
        for one in small:
            r.rank(one)
        r.rank(small[7])
        r.rank(small[7])  # a hit, at whose beginning the miss is told
        assert r.relay._bound._split._missed.count == 1
