"""Rendezvous hashing: the published vectors, an even spread, and moves only to or from what changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaygr.core.ids import session_key
from relaygr.relay.rendezvous import Kind, h64, preference, score

KINDS: tuple[Kind, ...] = ("blake2b", "mix64")
FOUR = dict.fromkeys("abcd", 1.0)
USERS = [f"u{number}" for number in range(100_000)]


def order(kind: Kind, weights: Mapping[str, float], key: str) -> str:
    found = preference(kind, weights)
    return "".join(found.ids[at] for at in found.order(key))


def owners(kind: Kind, weights: Mapping[str, float], keys: Sequence[str] = USERS) -> list[str]:
    found = preference(kind, weights)
    return [found.ids[found.owner(key)] for key in keys]


@pytest.fixture(scope="module")
def four() -> list[str]:
    """Owners of all users on four members."""
    return owners("blake2b", FOUR)


def test_session_key_vector() -> None:
    assert session_key("t1", "user-42") == "8a72c75855473111aac4a333c8176cfd"
    assert session_key("t1u", "ser-42") != session_key("t1", "user-42")


def test_hash_vector() -> None:
    assert h64("u0", "a") == 0x322FDE26DDA14A44


@pytest.mark.parametrize(("key", "wanted"), [("u0", "dcba"), ("u1", "badc"), ("u6", "adbc"), ("u8", "cdab")])
def test_order_vectors(key: str, wanted: str) -> None:
    assert order("blake2b", FOUR, key) == wanted
    # Whatever order the members are named in.
    assert order("blake2b", dict(reversed(FOUR.items())), key) == wanted


def test_spread_vector(four: list[str]) -> None:
    counts = Counter(four)
    assert [counts[name] for name in "abcd"] == [25156, 25029, 24968, 24847]


def test_a_fifth_member_takes_one_fifth(four: list[str]) -> None:
    after = owners("blake2b", {**FOUR, "e": 1.0})
    moved = [new for old, new in zip(four, after, strict=True) if old != new]
    assert round(100 * len(moved) / len(USERS), 2) == 20.07
    assert set(moved) == {"e"}


def test_a_removed_member_gives_only_its_own(four: list[str]) -> None:
    after = owners("blake2b", dict.fromkeys("abd", 1.0))
    for key, old, new in zip(USERS, four, after, strict=True):
        assert new == old or old == "c"
        if key == "u8":
            assert new == "d"


def test_weight_vector() -> None:
    assert Counter(owners("blake2b", {**FOUR, "d": 0.1}))["d"] == 3190


@pytest.mark.parametrize(
    ("kind", "count"), [*((kind, count) for kind in KINDS for count in (2, 3, 7, 64)), ("mix64", 500)]
)
def test_even_spread(kind: Kind, count: int) -> None:
    """Counts of users by member are as a fair die's: chi squared within five standard deviations."""
    keys = USERS[:20_000]
    counts = Counter(owners(kind, {f"10.0.0.{number}:8080": 1.0 for number in range(count)}, keys))
    fair = len(keys) / count
    chi = sum((counts[f"10.0.0.{number}:8080"] - fair) ** 2 / fair for number in range(count))
    assert abs(chi - (count - 1)) < 5 * math.sqrt(2 * (count - 1))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_share_in_proportion(kind: Kind) -> None:
    keys = USERS[:30_000]
    counts = Counter(owners(kind, {"a": 1.0, "b": 2.0, "c": 0.5}, keys))
    for name, part in (("a", 1 / 3.5), ("b", 2 / 3.5), ("c", 0.5 / 3.5)):
        assert counts[name] / len(keys) == pytest.approx(part, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_second_choices_are_independent(kind: Kind) -> None:
    """The second choice is spread as evenly as the first, for every first."""
    found = preference(kind, FOUR)
    pairs: Counter[str] = Counter()
    for key in USERS[:24_000]:
        choices = found.order(key)
        pairs[found.ids[next(choices)] + found.ids[next(choices)]] += 1
    assert len(pairs) == 12
    assert max(abs(count - 2000) for count in pairs.values()) < 5 * math.sqrt(2000)


@given(
    st.sampled_from(KINDS),
    st.text(),
    st.dictionaries(st.text(), st.sampled_from([0.1, 0.5, 1.0, 3.0]), min_size=2, max_size=12),
    st.data(),
)
def test_a_change_moves_keys_only_to_or_from_it(
    kind: Kind, key: str, weights: dict[str, float], data: st.DataObject
) -> None:
    found = preference(kind, weights)
    choices = [found.ids[at] for at in found.order(key)]
    assert sorted(choices) == sorted(weights)
    assert choices[0] == found.ids[found.owner(key)]
    name = data.draw(st.sampled_from(sorted(weights)))
    less = {other: weight for other, weight in weights.items() if other != name}
    rest = preference(kind, less)
    assert [rest.ids[at] for at in rest.order(key)] == [other for other in choices if other != name]
    heavier = preference(kind, {**weights, name: weights[name] * 2})
    assert heavier.ids[heavier.owner(key)] in (choices[0], name)


@given(st.dictionaries(st.text(), st.just(1.0), min_size=1, max_size=12), st.text())
def test_equal_weights_order_as_hashes_do(weights: dict[str, float], key: str) -> None:
    found = preference("blake2b", weights)
    wanted = sorted(weights, key=lambda name: (h64(key, name), name), reverse=True)
    assert [found.ids[at] for at in found.order(key)] == wanted


def test_scores_at_the_edges() -> None:
    """No hash, however close to the ends, gives a score that is not a positive number."""
    values = [0, 1, 2**63 - 1, 2**63, 2**64 - 2**11, 2**64 - 2, 2**64 - 1]
    scores = [score(value, 1.0) for value in values]
    assert all(0 < found < math.inf for found in scores)
    assert scores == sorted(scores)
