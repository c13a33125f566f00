"""Random lives of prefixes against a plain account of every request: no promise broken, no byte lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relaygr.relay.holds import Cause, HoldBook, Left, State

LIFE = 1.0
KEYS = st.integers(0, 2)
BYTES = st.integers(1, 40)
PICK = st.integers(0, 1 << 16)


@dataclass(eq=False)
class Request:
    """A signal that was admitted and whose ranking has not come."""

    key: int
    end_s: float


class Lives(RuleBasedStateMachine):
    @initialize(bound=st.integers(20, 120))
    def start(self, bound: int) -> None:
        self.book: HoldBook[int] = HoldBook(bound, LIFE)
        self.now = 0.0
        self.bound = bound
        self.proposed: int | None = None
        self.nbytes: dict[int, int] = {}
        self.generation: dict[int, int] = {}
        self.old: list[tuple[int, int]] = []
        self.requests: list[Request] = []
        self.readers: list[int] = []
        self.forgotten: set[int] = set()
        # Claims given and not taken away; those of requests that never rank end by themselves.
        self.given: Counter[int] = Counter()

    def limit(self) -> int:
        return self.bound if self.proposed is None else self.proposed

    def live(self) -> int:
        return sum(self.nbytes.values())

    def commit(self) -> None:
        if self.proposed is not None and self.live() <= self.proposed:
            self.bound, self.proposed = self.proposed, None

    def gone(self, left: Left[int]) -> None:
        assert self.nbytes.pop(left.key) == left.nbytes
        generation = self.generation.pop(left.key)
        assert left.generation == generation
        assert left.key not in self.readers
        self.old.append((left.key, generation))
        self.forgotten.discard(left.key)
        del self.given[left.key]
        self.commit()

    def waiting(self, key: int) -> list[Request]:
        return [one for one in self.requests if one.key == key and one.end_s > self.now]

    @rule(key=KEYS, nbytes=BYTES)
    def signal(self, key: int, nbytes: int) -> None:
        had = self.nbytes.get(key, 0)
        growth = max(nbytes - had, 0)
        room = self.live() + growth <= self.limit() or (key in self.nbytes and not growth)
        expected = room and key not in self.forgotten
        assert self.book.fits(key, nbytes) is expected
        assert self.book.reserve(key, nbytes, self.now) is expected
        if expected:
            self.requests.append(Request(key, self.now + LIFE))
            self.given[key] += 1
            self.nbytes[key] = had + growth
            found = self.book.generation(key)
            assert found is not None
            assert self.generation.setdefault(key, found) == found
            assert (key, found) not in self.old

    @rule(key=KEYS, nbytes=BYTES)
    def signal_and_make(self, key: int, nbytes: int) -> None:
        self.signal(key, nbytes)
        self.begin(key, False)
        self.finish(key, None)

    @rule(key=KEYS, reload=st.booleans())
    def begin(self, key: int, reload: bool) -> None:
        was = self.book.state(key)
        done = self.book.reload(key) if reload else self.book.produce(key)
        assert done is (was is State.RESERVED)

    @rule(key=KEYS, part=st.one_of(st.none(), BYTES))
    def finish(self, key: int, part: int | None) -> None:
        was = self.book.state(key)
        writable = was in (State.RESERVED, State.PRODUCING, State.RELOADING)
        done = self.book.ready(key, self.now, nbytes=part)
        assert done is (writable and key not in self.forgotten)
        if done and part is not None:
            self.nbytes[key] = min(self.nbytes[key], part)
            self.commit()

    @rule(kind=st.sampled_from(["fail", "withdraw", "delete", "past"]), key=KEYS, pick=PICK)
    def trouble(self, kind: str, key: int, pick: int) -> None:
        """One rule, so that most steps are of ordinary lives."""
        if kind == "fail":
            self.fail(key)
        elif kind == "delete":
            self.delete_user(key)
        elif kind == "withdraw" and self.requests:
            self.withdraw(pick)
        elif kind == "past" and self.old:
            self.speak_of_the_past(pick)

    def fail(self, key: int) -> None:
        was = self.book.state(key)
        left = self.book.cancel(key)
        assert (left is not None) is (was in (State.RESERVED, State.PRODUCING, State.RELOADING))
        if left is not None:
            assert left.cause is not Cause.CONSUMED
            # Those who waited have a miss.
            self.requests = [one for one in self.requests if one.key != key]
            self.gone(left)

    @precondition(lambda self: self.requests)
    @rule(pick=PICK, quick=st.booleans())
    def rank(self, pick: int, quick: bool) -> None:
        """A ranking reads the prefix if it is ready, and else ranks another way."""
        one = self.requests.pop(pick % len(self.requests))
        key, in_time = one.key, one.end_s > self.now
        if not in_time:
            if not self.book.claim(key, self.now):
                return
            self.given[key] += 1
        self.given[key] -= 1
        readable = self.book.state(key) in (State.READY, State.PINNED) and key not in self.forgotten
        assert self.book.pin(key) is readable
        if readable:
            self.readers.append(key)
            if quick:
                self.done(len(self.readers) - 1)
            return
        left = self.book.release(key, self.now)
        if left is not None:
            self.gone(left)

    @precondition(lambda self: self.readers)
    @rule(pick=PICK)
    def done(self, pick: int) -> None:
        key = self.readers.pop(pick % len(self.readers))
        left = self.book.unpin(key, self.now)
        if left is not None:
            assert left.cause is Cause.CONSUMED
            assert not self.waiting(key)
            self.gone(left)

    def withdraw(self, pick: int) -> None:
        one = self.requests.pop(pick % len(self.requests))
        if one.end_s > self.now:
            self.given[one.key] -= 1
            left = self.book.release(one.key, self.now)
            if left is not None:
                self.gone(left)

    def delete_user(self, key: int) -> None:
        self.requests = [one for one in self.requests if one.key != key]
        left = self.book.forget(key)
        if key in self.nbytes:
            self.forgotten.add(key)
            self.given[key] = 0
        if left is not None:
            self.gone(left)

    @rule(bound=st.integers(0, 120))
    def move_the_bound(self, bound: int) -> None:
        """R40: nothing leaves for a proposal."""
        before = self.book.by_state()
        self.proposed = bound
        self.commit()
        assert self.book.propose(bound) is (self.proposed is None)
        assert self.book.by_state() == before

    @rule(elapsed=st.sampled_from([0.3, 0.6, 1.0]), sweep=st.booleans())
    def wait(self, elapsed: float, sweep: bool) -> None:
        self.now += elapsed
        if sweep:
            self.sweep()

    def sweep(self) -> None:
        for left in self.book.expire(self.now):
            assert left.state in (State.READY, State.RESERVED)
            assert not self.waiting(left.key)
            self.gone(left)

    def speak_of_the_past(self, pick: int) -> None:
        key, generation = self.old[pick % len(self.old)]
        before = (self.book.state(key), self.book.claims(key), self.book.pins(key))
        assert not self.book.produce(key, generation)
        assert not self.book.reload(key, generation)
        assert not self.book.ready(key, self.now, generation)
        assert not self.book.pin(key, generation)
        assert self.book.unpin(key, self.now, generation) is None
        assert self.book.release(key, self.now, generation) is None
        assert self.book.cancel(key, generation) is None
        assert (self.book.state(key), self.book.claims(key), self.book.pins(key)) == before

    @invariant()
    def r4_live_bytes_within_the_bound(self) -> None:
        book = self.book
        assert book.live_bytes == self.live() == sum(book.by_state().values())
        assert book.live_bytes <= book.bound_bytes == self.bound
        assert book.limit_bytes == self.limit() <= book.bound_bytes
        assert len(book) == len(self.nbytes) == sum(book.counts().values())

    @invariant()
    def r3_what_somebody_waits_for_is_there(self) -> None:
        for one in self.requests:
            if one.end_s > self.now:
                assert one.key in self.nbytes
                assert self.book.claims(one.key) >= len(self.waiting(one.key))
        for key in self.nbytes:
            assert self.book.claims(key) <= self.given[key]
        for key in self.readers:
            assert self.book.state(key) is State.PINNED
            assert self.book.pins(key) == self.readers.count(key)

    def teardown(self) -> None:
        """R25: nobody signals or ranks any more, what is running ends, T_life goes by."""
        if not hasattr(self, "book"):
            return
        for key in list(self.nbytes):
            if self.book.state(key) in (State.PRODUCING, State.RELOADING) and not self.book.ready(
                key, self.now
            ):
                left = self.book.cancel(key)
                assert left is not None
                self.gone(left)
        while self.readers:
            self.done(0)
        self.now += LIFE
        self.sweep()
        assert (self.book.live_bytes, len(self.book)) == (0, 0)
        assert set(self.book.by_state().values()) == {0}
        assert self.book.bound_bytes == self.book.limit_bytes


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
