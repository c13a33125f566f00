"""Users that are deleted and models that are swapped while their prefixes are on their way or held."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest
from relay_rig import FULL, FULL_BYTES, T_LIFE_S, Rig, longer, rig, user
from scheduler_fakes import PATIENCE_S, await_true

from relaygr.core.errors import CancelledError
from relaygr.engine.jobs import Admission
from relaygr.engine.requests import Path
from relaygr.relay.hold import State

ONE, TWO = user("one"), user("two")
HOST = {"host_bytes": 4 << 20}


def forget(r: Rig, name: str = "one") -> int:
    """Beside the executor, which may have to finish a step first."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(r.scheduler.forget("default", name)))
    thread.start()
    await_true(lambda: not any(job.owner[1] == name for job in r.scheduler._flights))
    r.brake.release()
    thread.join(PATIENCE_S)
    [dropped] = found
    return dropped


def reserved(r: Rig) -> None:
    r.brake.stop()
    r.signal(TWO)
    r.brake.await_step()
    r.signal(ONE)


def producing(r: Rig) -> None:
    r.brake.stop()
    r.signal(ONE)
    r.brake.await_step()
    r.brake.go()
    r.brake.await_step()
    assert r.state(ONE) is State.PRODUCING


def ready(r: Rig) -> None:
    r.prepare(ONE)


def hit(r: Rig) -> None:
    r.rank(ONE)
    r.signal(ONE)


def ranked(r: Rig) -> None:
    r.prepare(ONE)
    r.rank(ONE)


def in_host(r: Rig) -> None:
    r.rank(ONE)
    r.rest()
    spill(r)
    assert r.cached(ONE) == (0, FULL)


def spill(r: Rig) -> None:
    """Everything that is not held."""
    while r.engine.spill_step(1.0, 1 << 30, lambda ref: True):
        pass


@pytest.mark.parametrize("stage", [reserved, producing, ready, hit, ranked, in_host])
def test_r34_nothing_is_left_of_a_deleted_user(stage: Callable[[Rig], None]) -> None:
    with rig(host=HOST) as r:
        stage(r)
        dropped = forget(r)
        assert (r.cached(ONE), r.state(ONE)) == ((0, 0), None)
        assert dropped == (0 if stage is reserved else 1)
        identity = ("default", "one")
        assert identity not in r.engine._tiers.books._index._of_user
        assert identity not in r.engine._tiers._held
        r.rest()
        assert r.rank(ONE).served.path is Path.FULL
        assert r.prepare(ONE).admission is Admission.HIT


def test_r34_a_flight_ends_with_its_user() -> None:
    with rig() as r:
        producing(r)
        [flight] = {*r.scheduler._flights, *r.scheduler._unanswered()}
        forget(r)
        assert isinstance(flight.exception(PATIENCE_S), CancelledError)


def test_r34_a_shadow_ends_with_its_user() -> None:
    with rig(relay={"shadow_rate": 1.0}) as r:
        r.rank(ONE)
        r.brake.stop()
        r.ask(ONE).future.result(PATIENCE_S)  # a hit, scored again when nothing else is to be done
        r.brake.await_step()
        [shadow] = r.chores._waiting
        forget(r)
        assert not r.chores._waiting
        memory = weakref.ref(shadow)
        del shadow
        r.rest()
        gc.collect()
        assert memory() is None


def test_r34_beside_everything_else() -> None:
    """Signals and rankings of a user who is deleted again and again, and of one who is not."""
    with rig(host=HOST, relay={"shadow_rate": 0.5}) as r:
        deleted = threading.Event()

        def delete() -> None:
            while not deleted.wait(0.002):
                r.scheduler.forget("default", "one")

        thread = threading.Thread(target=delete)
        thread.start()
        kept = []
        for number in range(40):
            one, two = longer(user("one", 40), number), longer(user("two", 40), number)
            for each in (one, two):
                r.signal(each)
            kept.append(r.ask(two))
            r.ask(one)
        deleted.set()
        thread.join(PATIENCE_S)
        for job in kept:
            r.right(job, job.future.result(PATIENCE_S))
        r.scheduler.forget("default", "one")
        assert r.cached(longer(user("one", 40), 39)) == (0, 0)


@pytest.mark.parametrize("stage", [reserved, producing, ready, hit, ranked, in_host])
def test_r33_a_swap_never_mixes_and_frees_what_was_held(stage: Callable[[Rig], None]) -> None:
    with rig(host=HOST) as r:
        stage(r)
        before = weakref.ref(r.engine)
        r.swap(1)
        r.brake.release()
        r.rest()
        assert set(r.live) <= ({"ready"} if stage in (reserved, producing) else set())
        r.rank(ONE)  # compares with the new model
        r.rank(longer(ONE, 3))
        await_true(lambda: gc.collect() >= 0 and before() is None)
        assert r.prepare(TWO).admission is not Admission.REJECTED
        r.rank(TWO)


def test_r33_a_flight_starts_over_on_the_new_model() -> None:
    with rig() as r:
        r.brake.stop()
        answer = r.signal(ONE)
        assert answer.flight is not None
        r.brake.await_step()
        r.brake.go()
        r.brake.await_step()
        r.swap(1)
        r.brake.release()
        served = answer.flight.result(PATIENCE_S)
        assert served.model == r.engine.model_fp
        assert r.cached(ONE) == (FULL, 0)
        r.rest()
        # The reservation was the old model's: the prefix is plain cache of the new one.
        r.nothing_held()


def test_r33_a_reload_under_way_does_not_keep_the_link() -> None:
    with rig(host={**HOST, "reload_slots": 1}) as r:
        for number in (1, 2):
            in_host(r)
            r.brake.stop()
            r.signal(TWO)
            r.brake.await_step()
            r.signal(ONE)
            with r.relay._lock:
                r.relay._link.next(r.clock.now_s())
            assert r.relay._link.running == 1
            r.swap(number)
            assert r.relay._link.running == 0
            r.brake.release()
            r.rest()
            r.scheduler.forget("default", "two")
            r.scheduler.forget("default", "one")


def test_r33_a_ranking_that_began_before_the_swap_ends_it_in_the_old_book() -> None:
    with rig() as r:
        r.prepare(ONE)
        r.brake.stop()
        r.signal(TWO)
        r.brake.await_step()
        job = r.ask(ONE)  # announced to the old model
        r.advance(0.001)
        r.swap(1)
        r.signal(ONE)
        assert r.claims(ONE) == 1
        job.cancel()
        assert r.claims(ONE) == 1  # which is the new signal's
        r.brake.release()
        r.rest()
        assert r.state(ONE) is State.READY


def test_what_is_disabled_stays_so_after_a_swap_and_back() -> None:
    with rig() as r:
        r.relay.disable(r.engine.model_fp.hex())
        assert r.signal(ONE).reason == "disabled"
        r.swap(1)
        assert r.prepare(ONE).admission is Admission.ADMITTED
        r.swap(0)
        assert r.signal(ONE).reason == "disabled"
        assert r.live == {}


def test_a_disabled_build_keeps_what_it_holds_until_it_is_ranked() -> None:
    with rig() as r:
        r.prepare(ONE)
        r.relay.disable(r.engine.model_fp.hex())
        assert r.live == {"ready": FULL_BYTES}
        r.advance(T_LIFE_S / 2)
        assert r.rank(ONE).served.path is Path.HIT
        assert r.live == {}
