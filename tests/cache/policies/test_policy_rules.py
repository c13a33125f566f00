"""What sets each policy apart, on small examples; and the parts that they are made of."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Hashable
from typing import Any

import pytest
from policy_play import Play, weight

from relaygr.cache.policies import PolicySettings, make
from relaygr.cache.policies.order import Order
from relaygr.cache.policies.sketch import Sketch
from relaygr.cache.policies.visits import Visits
from relaygr.cache.policy import Policy, Victim, Weight


def fill(policy: Policy[Any], keys: str, nbytes: int = 1) -> Policy[Any]:
    for key in keys:
        policy.touch(key)
        policy.insert(key, weight(nbytes))
    return policy


def visit(policy: Policy[Any], keys: str) -> None:
    for key in keys:
        policy.touch(key)


def leaves(policy: Policy[Any]) -> str:
    gone = ""
    while (victim := policy.evict()) is not None:
        gone += victim.key
    return gone


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("lru", "bdeac"),
        ("slru", "bdeac"),  # a and c are protected
        ("sieve", "bdeac"),  # a and c are passed by once
        ("lru2", "bdeca"),  # the visit before c's last was before the one before a's
        ("gdsf", "bdeca"),  # by the number of visits
    ],
)
def test_who_was_visited_again_leaves_last(name: str, order: str) -> None:
    policy = fill(make(name, 100), "abcde")
    visit(policy, "aac")
    assert leaves(policy) == order


def test_sieve_keeps_in_place_and_its_hand_goes_on() -> None:
    policy = fill(make("sieve", 5), "abcde")
    visit(policy, "ab")
    assert policy.evict() == Victim("c")
    fill(policy, "f")
    visit(policy, "d")
    assert policy.evict() == Victim("e"), "past d, which was visited"
    assert policy.evict() == Victim("f")
    assert leaves(policy) == "abd"


def test_lru2_remembers_what_left() -> None:
    policy = fill(make("lru2", 3), "abc")
    assert policy.evict() == Victim("a")
    fill(policy, "a")  # its second visit
    assert leaves(policy) == "bca"


def test_slru_puts_back_on_probation_what_is_too_much() -> None:
    policy = fill(make("slru", 5), "abcde")
    visit(policy, "abcde")  # 80 % is four of five
    fill(policy, "f")
    assert leaves(policy) == "afbcde"


def test_s3fifo_lets_a_ghost_into_the_main_queue() -> None:
    policy = make("s3fifo", 10, PolicySettings(promote_at=1))
    play = Play(policy, 10)
    play.run([(key, 1) for key in "abcdefghij"])
    play.visit("k", 1)
    (first,) = play.victims
    assert first.key == "a", "the small queue has one place, and the others came into the main one"
    play.visit("a", 1)
    play.run([(f"once {i}", 1) for i in range(9)])
    assert "a" in policy, "it came back and is in the main queue"
    assert "k" not in policy


def test_arc_gives_room_to_what_left_too_early() -> None:
    """Two visits in a row make an entry one of the second part; ghosts of the first move the border."""
    play = Play(make("arc", 4), 4)
    play.run([(key, 1) for key in "aabb"] + [(key, 1) for key in "cdef"])
    assert {"a", "b", "f"} <= set(play.sizes), "what came once leaves first"
    assert not play.visit("d", 1)
    play.run([("g", 1)])
    assert "d" in play.sizes


def test_wtinylfu_main_part_takes_only_what_is_visited_as_often() -> None:
    policy = make("wtinylfu", 10, PolicySettings(window_share=0.2))
    play = Play(policy, 10)
    for _ in range(3):
        play.run([(key, 1) for key in "abcdefgh"])
    play.run([(i, 1) for i in range(200)])
    assert set("abcdefgh") <= set(play.sizes), "a scan stays in the window"
    for _ in range(5):
        play.run([(key, 1) for key in "ABCD"])
    assert set("ABCD") <= set(play.sizes), "who is visited as often comes in"


def test_tlru_trims_tails_before_anybody_leaves() -> None:
    policy = make("tlru", 10_000)
    for key, tokens in (("a", 1200), ("b", 400), ("c", 2000)):
        policy.insert(key, Weight(tokens, tokens, 1.0, 0.0))
    visit(policy, "a")
    assert policy.evict() == Victim("b"), "all of it can be computed in time"
    assert policy.evict() == Victim("c", 2000 - 493)
    assert policy.evict() == Victim("a", 707)
    policy.insert("a", Weight(707, 707, 1.0, 0.0))
    policy.insert("d", Weight(500, 500, 1.0, 0.0))
    assert policy.evict() == Victim("d", 7)
    policy.insert("a", Weight(1219, 1219, 1.0, 0.0))
    assert policy.evict() == Victim("a", 1219 - 493), "it has grown again"
    assert leaves(policy) == "cad"


def test_tlru_with_nothing_to_spare_is_lru() -> None:
    policy = make("tlru", 10, PolicySettings(growth_tokens=600, late_tokens=512))
    fill(policy, "abc", 1000)
    visit(policy, "a")
    assert leaves(policy) == "bca"


def test_the_default_takes_the_load_from_the_gain() -> None:
    policy: Policy[str] = make("gd_cost", 100)
    for key, load_ms in (("dear to load", 5.0), ("cheap to load", 1.0), ("dearer to load", 9.0)):
        policy.touch(key)
        policy.insert(key, Weight(1, 1, 6.0, load_ms))
    assert [policy.evict(), policy.evict()] == [Victim("dearer to load"), Victim("dear to load")]


def test_the_default_counts_up_to_its_cap_and_remembers_who_left() -> None:
    policy: Policy[str] = make("gd_cost", 100, PolicySettings(first_touch_weight=0.25, freq_cap=3))
    keys = []
    for _ in range(5):
        policy.touch("a")
        policy.insert("a", Weight(1 << 20, 1, 1.0, 0.0))
        keys.append(round(policy.key_of("a"), 3))  # type: ignore[attr-defined]
        policy.remove("a")
    assert keys == [0.25, 2.0, 3.0, 3.0, 3.0]


def test_a_long_stream_does_not_wear_out_the_keys() -> None:
    """After entries that made the age huge, small differences still decide."""
    policy: Policy[str] = make("gd_cost", 100)
    for i in range(100):
        policy.insert(f"huge {i}", Weight(1, 1, 1e7, 0.0))
        policy.evict()
    assert policy.age > 1e14  # type: ignore[attr-defined]
    policy.insert("dearer", Weight(1 << 20, 1, 1.0001, 0.0))
    policy.insert("cheaper", Weight(1 << 20, 1, 1.0, 0.0))
    assert policy.evict() == Victim("cheaper")


class TextbookLirs:
    """For entries of one size, in two lists: the stack with its top last, and the queue of high ones."""

    def __init__(self, low: int, high: int) -> None:
        self.low_size, self.size = low, low + high
        self.stack: list[Hashable] = []
        self.queue: list[Hashable] = []
        self.low: set[Hashable] = set()

    def visit(self, key: Hashable) -> bool:
        here = key in self.low or key in self.queue
        if key in self.low:
            self._to_top(key)
        elif here:
            known = key in self.stack
            self._to_top(key)
            self.queue.remove(key)
            if known:
                self._make_low(key)
            else:
                self.queue.append(key)
        else:
            known = key in self.stack
            if known:
                self._to_top(key)
            if len(self.low) + len(self.queue) == self.size:
                self.queue.pop(0)
            self._to_top(key)
            if known or len(self.low) < self.low_size:
                self._make_low(key)
            else:
                self.queue.append(key)
        self._prune()
        return here

    def _to_top(self, key: Hashable) -> None:
        if key in self.stack:
            self.stack.remove(key)
        self.stack.append(key)
        self._prune()

    def _make_low(self, key: Hashable) -> None:
        self.low.add(key)
        if len(self.low) > self.low_size:
            self._prune()
            bottom = self.stack.pop(0)
            self.low.remove(bottom)
            self.queue.append(bottom)

    def _prune(self) -> None:
        while self.low and self.stack and self.stack[0] not in self.low:
            del self.stack[0]


@pytest.mark.parametrize("seed", range(3))
def test_lirs_as_in_the_textbook(seed: int) -> None:
    rng = random.Random(seed)
    book, play = TextbookLirs(36, 4), Play(make("lirs", 40, PolicySettings(resident_share=0.1)), 40)
    for step in range(4000):
        key = int(120 * rng.random() ** 2) if rng.random() < 0.7 else 1000 + step % 50
        assert play.visit(key, 1) == book.visit(key)
    assert 1000 < sum(play.hits) < 3500


def test_visits_are_halved_and_never_below_one() -> None:
    visits: Visits[str] = Visits(entries=100, halve_ops=8)
    for _ in range(7):
        visits.add("a")
    visits.add("b")
    assert (visits.count("a"), visits.count("b"), visits.count("c")) == (3, 1, 0)
    assert visits.add("a") == 4
    for i in range(16):
        visits.add(f"u{i}")
    assert (visits.count("a"), visits.count("b")) == (1, 1)


def test_visits_of_who_is_here_are_no_ghosts() -> None:
    visits: Visits[int] = Visits(entries=3, halve_ops=1000)
    for key in range(10):
        visits.add(key)
        visits.came(key)
    assert visits.ghosts == 0
    for key in range(10):
        visits.left(key)
    assert visits.ghosts == 3
    assert [visits.count(key) for key in range(10)] == [0] * 7 + [1] * 3


def test_an_order_stays_small_and_keeps_its_order() -> None:
    rng, order = random.Random(0), Order[int]()
    for key in range(50):
        order.place(key, rng.randrange(1000))
    for _ in range(5000):
        key = rng.randrange(50)
        order.park(key)
        order.unpark(key)
        order.place(key, rng.randrange(1000))
        assert len(order._heap) <= 2 * len(order) + 65
    ranks = {key: order.rank(key) for key in range(50)}
    popped = [order.pop() for _ in range(50)]
    assert [ranks[key] for key in popped if key is not None] == sorted(ranks.values())
    assert (order.pop(), order.first(), len(order)) == (None, None, 0)


def test_a_sketch_estimates_halves_and_forgets() -> None:
    sketch = Sketch(64)
    for _ in range(9):
        sketch.add("often")
    sketch.add("once")
    assert (sketch.estimate("often"), sketch.estimate("once"), sketch.estimate("never")) == (9, 1, 0)
    for _ in range(20):
        sketch.add("often")
    assert sketch.estimate("often") == 15
    for i in range(611):
        sketch.add(i % 3)
    assert sketch.estimate("often") in (7, 8), "halved after 640 visits"
    sketch.forget("often")
    assert sketch.estimate("often") == 0


def test_other_processes_decide_alike() -> None:
    """Strings hash differently in each process; nothing may depend on it."""
    script = (
        "from relaygr.cache.policies import POLICIES, make\n"
        "from relaygr.cache.policy import Weight\n"
        "for name in POLICIES:\n"
        "    policy, gone = make(name, 300), ''\n"
        "    for i in range(400):\n"
        "        key = f'u{i * i % 83}'\n"
        "        policy.touch(key)\n"
        "        if key not in policy and len(policy) > 25:\n"
        "            gone += policy.evict().key\n"
        "        policy.insert(key, Weight(10 + i % 7, 600, 1.0 + i % 3, 0.0))\n"
        "    print(name, gone)\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert found.pop().count("u") > 1000
