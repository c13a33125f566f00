"""The ladder before ranking and the spill after it, over K/V prefixes and over a sketch of fixed size."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Prefix, Ref
from relaygr.relay.expander import Decision, Expander, Spill, Step, Why
from relaygr.relay.link import ReloadLink
from relaygr.relay.returns import Returns

MIB = 1 << 20


def ref(tokens: int, user: str = "u") -> Ref:
    return Ref(Tenant("t"), UserId(user), Fingerprint(b"m"), 1, 0, (b"d",), (), memoryview(b""), 8, tokens)


@dataclass(frozen=True)
class Kv:
    """Keys and values of the first `tokens` tokens."""

    user: str
    tokens: int

    @property
    def nbytes(self) -> int:
        return self.tokens * 8192

    def valid_for(self, ref: Ref) -> int:
        return min(self.tokens, ref.tokens) if ref.user == self.user else 0


@dataclass(frozen=True)
class Sketch:
    """A summary of fixed size: good for exactly the content it was made of."""

    user: str
    tokens: int
    nbytes: int = 64 * 1024

    def valid_for(self, ref: Ref) -> int:
        return ref.tokens if (ref.user, ref.tokens) == (self.user, self.tokens) else 0


KINDS = (Kv, Sketch)


def expander(min_reuse: float = 0.2, queue_max: int = 4, bytes_per_s: float = 25e9) -> Expander[str]:
    return Expander(ReloadLink(2, bytes_per_s), Returns(600.0), min_reuse, queue_max)


def prepare(
    one: Expander[str],
    device: Prefix | None = None,
    host: Prefix | None = None,
    *,
    tokens: int = 4096,
    waiter: str = "w",
    key: str = "u",
    deadline_s: float = 1.0,
    recompute_s: float = 0.05,
    appendable: bool = True,
) -> Decision:
    return one.prepare(key, ref(tokens, key), device, host, waiter, 0.0, deadline_s, recompute_s, appendable)


@pytest.mark.parametrize("kind", KINDS)
def test_ready_on_the_device_reads_nothing_from_the_host(kind: type[Kv] | type[Sketch]) -> None:
    one = expander()
    assert prepare(one, kind("u", 4096), kind("u", 4096)) == Decision(Step.HOLD, Why.READY, 4096)
    assert (one._link.waiting, len(one)) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_host_is_reloaded(kind: type[Kv] | type[Sketch]) -> None:
    one = expander()
    assert prepare(one, None, kind("u", 4096)) == Decision(Step.RELOAD, Why.ON_HOST, 4096)
    assert one._link.next(0.0)[0].nbytes == kind("u", 4096).nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_r39_a_reload_that_is_late_or_slower_is_computed(kind: type[Kv] | type[Sketch]) -> None:
    copy = kind("u", 4096).nbytes / 1e6
    for deadline, recompute, why in ((copy * 0.9, 9e9, Why.LATE), (9e9, copy * 0.9, Why.SLOWER)):
        one = expander(bytes_per_s=1e6)
        got = prepare(one, None, kind("u", 4096), deadline_s=deadline, recompute_s=recompute)
        assert got == Decision(Step.COMPUTE, why, 0)
        assert one.skipped[why] == 1
        assert one.in_flight("u")


def test_a_shorter_prefix_is_extended_if_the_model_allows_it() -> None:
    assert prepare(expander(), Kv("u", 1000)) == Decision(Step.EXTEND, Why.NOT_ON_HOST, 1000)
    assert prepare(expander(), Kv("u", 1000), appendable=False) == Decision(Step.COMPUTE, Why.NOT_ON_HOST, 0)
    assert prepare(expander(), Sketch("u", 1000)) == Decision(Step.COMPUTE, Why.NOT_ON_HOST, 0)
    assert prepare(expander()) == Decision(Step.COMPUTE, Why.NOT_ON_HOST, 0)


def test_a_part_on_the_host_is_worth_a_reload_only_if_it_can_be_extended() -> None:
    part = Kv("u", 3000)
    assert prepare(expander(), Kv("u", 1000), part) == Decision(Step.RELOAD, Why.ON_HOST, 3000)
    assert prepare(expander(), None, part, appendable=False).step == Step.COMPUTE
    assert prepare(expander(), part, Kv("u", 1000)) == Decision(Step.EXTEND, Why.NOT_ON_HOST, 3000)
    assert prepare(expander(), None, Kv("other", 4096)).step == Step.COMPUTE


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_r16_any_signals_of_a_key_make_one_flight(kind: type[Kv] | type[Sketch], seed: int) -> None:
    rng, one = random.Random(seed), expander()
    begun = dict.fromkeys("abc", 0)
    on_host = {key for key in "abc" if rng.random() < 0.5}
    for number in range(40):
        key = rng.choice("abc")
        host = kind(key, 4096) if key in on_host else None
        got = prepare(one, None, host, key=key, waiter=f"{number}")
        if got.step != Step.JOIN:
            begun[key] += 1
            assert got.step == (Step.RELOAD if key in on_host else Step.COMPUTE)
        if rng.random() < 0.1:
            one._link.next(0.0)
    assert all(count <= 1 for count in begun.values())
    for key in "abc":
        waiting = one.landed(key)
        assert bool(waiting) == bool(begun[key])
        assert len(waiting) == len(set(waiting))
        assert not one.in_flight(key)


def test_a_reload_that_is_given_up_goes_on_as_a_computation_with_the_same_waiters() -> None:
    one = expander()
    prepare(one, Kv("u", 100), Kv("u", 4096), waiter="first")
    assert prepare(one, None, None, waiter="second").step == Step.JOIN
    got = one.instead("u", ref(4096), Kv("u", 100), Why.FAILED, appendable=True)
    assert got == Decision(Step.EXTEND, Why.FAILED, 100)
    assert one.skipped[Why.FAILED] == 1
    assert one.landed("u") == ("first", "second")
    assert one.landed("u") == ()
    with pytest.raises(KeyError):
        one.instead("u", ref(4096), None, Why.FAILED, appendable=True)


def test_a_flight_ends_early_only_without_waiters_and_without_a_return_in_sight() -> None:
    one = expander(min_reuse=0.2)
    for number in range(20):  # nobody ever comes back
        one._returns.visit(f"v{number}", -2000.0)
    prepare(one, waiter="a", deadline_s=1.0)
    prepare(one, waiter="b", deadline_s=5.0)
    assert not one.pointless("u", 0.0)
    one.leave("u", "a")
    one.leave("u", "nobody")
    assert not one.pointless("u", 4.0)
    assert one.pointless("u", 5.0)  # b's time is over
    one._returns.visit("u", 0.0)
    one._returns.visit("u", 1.0)
    assert not one.pointless("u", 5.0)  # u does come back
    one.landed("u")
    assert not one.pointless("u", 5.0)


def test_landing_takes_a_queued_reload_back() -> None:
    one = expander()
    prepare(one, None, Kv("u", 4096))
    one.landed("u")
    assert one._link.next(0.0) == (None, ())


@pytest.mark.parametrize("kind", KINDS)
def test_r39_spill(kind: type[Kv] | type[Sketch]) -> None:
    one = expander(min_reuse=0.2, queue_max=2)
    wanted = ref(4096)

    def spill(host: Prefix | None = None, consumed: bool = True, queued: int = 0) -> Spill:
        return one.spill("u", wanted, host, consumed, queued, 0.0)

    assert spill() == Spill.YES
    assert spill(consumed=False) == Spill.LIVE
    assert spill(host=kind("u", 4096)) == Spill.ON_HOST
    assert spill(host=kind("u", 4000)) == Spill.YES
    assert spill(queued=2) == Spill.QUEUE_FULL
    prepare(one)
    assert spill() == Spill.IN_FLIGHT
    one.landed("u")
    for number in range(20):
        one._returns.visit(f"v{number}", -2000.0)
    one._returns.visit("u", 0.0)
    assert spill() == Spill.UNLIKELY
    one._min_reuse = 0.0
    assert spill() == Spill.YES
    assert one.spills == {
        Spill.YES: 3, Spill.LIVE: 1, Spill.IN_FLIGHT: 1, Spill.ON_HOST: 1, Spill.UNLIKELY: 1,
        Spill.QUEUE_FULL: 1,
    }  # fmt: skip


def test_every_decision_is_counted() -> None:
    one = expander()
    prepare(one)
    prepare(one)
    prepare(one, Kv("u", 4096))
    assert one.steps == {Step.HOLD: 1, Step.JOIN: 1, Step.RELOAD: 0, Step.EXTEND: 0, Step.COMPUTE: 1}


def test_an_empty_prefix_is_ready() -> None:
    assert prepare(expander(), tokens=0).step == Step.HOLD
