"""Placements expire, are bounded, and forget those who were used least recently."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from relaygr.relay.placement import Placements, stay_s

TTL_S, LIMIT = 10.0, 4


def test_the_limit_holds_on_insert() -> None:
    placements = Placements(1e9, 1000)
    for number in range(5000):
        placements.put(f"u{number}", "a", float(number))
        assert len(placements) <= 1000
    assert placements.get("u4000", 5000.0) == "a"
    assert placements.get("u3999", 5000.0) is None


def test_what_nobody_asks_for_leaves_after_its_time() -> None:
    placements = Placements(TTL_S, 1000)
    for number in range(500):
        placements.put(f"u{number}", "a", 0.0)
    for number in range(250):
        placements.put(f"v{number}", "b", 100.0)
    assert len(placements) == 250


def test_no_time_is_no_memory() -> None:
    placements = Placements(0.0, 4)
    placements.put("u", "a", 1.0)
    assert placements.get("u", 1.0) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "get", "forget"]), st.sampled_from("uvwxyz"), st.sampled_from("ab"),
            st.sampled_from([0.0, 1.0, 6.0]),
        )
    )
)  # fmt: skip
def test_as_a_plain_model(steps: list[tuple[str, str, str, float]]) -> None:
    """What is there is right and young; what is missing was old, forgotten, or the least recently used."""
    placements, now_s = Placements(TTL_S, LIMIT), 0.0
    model: OrderedDict[str, tuple[str, float]] = OrderedDict()
    for action, key, name, wait_s in steps:
        now_s += wait_s
        for old in [one for one, (_, end_s) in model.items() if now_s >= end_s]:
            del model[old]
        if action == "put":
            model.pop(key, None)
            model[key] = name, now_s + TTL_S
            while len(model) > LIMIT:
                model.popitem(last=False)
            placements.put(key, name, now_s)
        elif action == "get":
            assert placements.get(key, now_s) == model.get(key, (None,))[0]
        else:
            model.pop(key, None)
            placements.forget(key)
        assert len(model) <= len(placements) <= LIMIT


def test_a_stay_elsewhere_ends_however_often_it_is_used() -> None:
    places = Placements(100.0, 10)
    places.put("u", "b", 0.0, for_now=True)
    left_s = 0.0
    for now_s in range(1, 200):
        if places.get("u", float(now_s)) is None:
            left_s = float(now_s)
            break
        places.put("u", "b", float(now_s))
    assert 25.0 <= left_s <= 101.0
    # At home again, use counts.
    places.put("u", "a", left_s)
    places.put("u", "a", left_s + 90.0)
    assert places.get("u", left_s + 180.0) == "a"


def test_those_who_fled_together_do_not_go_back_together() -> None:
    places = Placements(100.0, 1000)
    for number in range(400):
        places.put(f"u{number}", "b", 0.0, for_now=True)
    there = [
        sum(places.get(f"u{number}", at_s) == "b" for number in range(400)) for at_s in (24, 50, 75, 101)
    ]
    assert there[0] == 400
    assert 200 < there[1] < 330
    assert 70 < there[2] < 200
    assert there[3] == 0


def test_a_stay_that_ends_before_the_ranking_can_come_has_ended() -> None:
    places = Placements(10.0, 100)
    places.put("u", "b", 0.0, for_now=True)
    end_s = stay_s("u", 10.0)
    assert places.get("u", end_s - 1.0, lasting_s=0.9) == "b"
    assert places.get("u", end_s - 1.0, lasting_s=1.0) is None
    # Only stays end so: what is renewed by being used lasts.
    places.put("v", "b", 0.0)
    assert places.get("v", 9.9, lasting_s=5.0) == "b"
