"""Hits of visits by kind, and their ceilings, against a count by hand."""

import random

import pytest

from relaygr.cache.tally import Found, Kind, Tally, Tier, Use, Visit


def plain(new: int, cached: int) -> float:
    return new + (new * cached + new * (new + 1) / 2) / 4096


def found(tokens: int, device: int = 0, host: int = 0, disk: int = 0, reused: int | None = None) -> Found:
    most = max(device, host, disk)
    return Found(tokens, device, host, disk, most if reused is None else reused)


def test_the_ceiling_of_one_user_with_three_visits() -> None:
    tally = Tally(plain)
    for tokens in (100, 110, 125):
        tally.visit("u", found(tokens))
    ceilings = tally.counts().ceilings
    assert ceilings is not None
    assert ceilings.request == pytest.approx(2 / 3)
    assert ceilings.token == pytest.approx(1 - 125 / 335)
    left = plain(100, 0) + plain(10, 100) + plain(15, 110)
    assert ceilings.cost == pytest.approx(1 - left / sum(plain(n, 0) for n in (100, 110, 125)))


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (found(100), (Tier.NONE, Use.USED)),
        (found(100, device=90), (Tier.DEVICE, Use.USED)),
        (found(100, device=90, host=90), (Tier.DEVICE, Use.USED)),
        (found(100, device=30, host=90), (Tier.HOST, Use.USED)),
        (found(100, device=30, host=90, reused=30), (Tier.HOST, Use.LATE)),
        (found(100, disk=90, reused=0), (Tier.DISK, Use.LATE)),
        (found(100, device=40, reused=80), (Tier.DEVICE, Use.USED)),  # the rest was computed ahead
    ],
)
def test_what_a_visit_found(seen: Found, kind: tuple[Tier, Use]) -> None:
    tally = Tally(plain)
    assert tally.visit("u", seen) == Kind(kind[0], Visit.FIRST, kind[1])
    assert tally.visit("u", seen) == Kind(kind[0], Visit.RETURNING, kind[1])


def test_sums_are_those_of_a_count_by_hand() -> None:
    rng, tally = random.Random(1), Tally(plain)
    last: dict[int, int] = {}
    tokens_all = reused_all = best = 0
    saved = 0.0
    for _ in range(500):
        user = rng.randrange(40)
        tokens = last.get(user, rng.randint(1, 300)) + rng.randint(0, 20)
        device = rng.choice([0, min(last.get(user, 0), tokens)])
        tally.visit(user, found(tokens, device))
        tokens_all, reused_all = tokens_all + tokens, reused_all + device
        best += min(last.get(user, 0), tokens)
        saved += plain(tokens, 0) - plain(tokens - device, device)
        last[user] = tokens
    counts = tally.counts()
    assert (counts.all.requests, counts.all.tokens) == (500, tokens_all)
    assert sum(one.requests for one in counts.kinds.values()) == 500
    assert sum(one.tokens for one in counts.kinds.values()) == reused_all
    assert sum(one.cost_ms for one in counts.kinds.values()) == pytest.approx(saved)
    assert counts.ceilings is not None
    assert counts.ceilings.token == pytest.approx(best / tokens_all)
    assert sum(one.requests for kind, one in counts.kinds.items() if kind.visit is Visit.FIRST) == 40


def test_memory_is_bounded_and_forgets() -> None:
    tally = Tally(plain, users=3)
    for user in range(10):
        tally.visit(user, found(5))
    assert len(tally._last) == 3
    assert tally.visit(9, found(5)).visit is Visit.RETURNING
    assert tally.visit(0, found(5)).visit is Visit.FIRST
    tally.forget(0)
    assert tally.visit(0, found(5)).visit is Visit.FIRST
    assert Tally(plain).counts().ceilings is None


def test_a_user_without_a_history() -> None:
    tally = Tally(plain)
    for _ in range(2):
        tally.visit("u", found(0))
    assert tally.counts().ceilings == (0.0, 0.0, 0.0)
