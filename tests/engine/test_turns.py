"""Rankings first, one turn of something else between them at most, and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from scheduler_fakes import FakeEngine, request, result, user

from relaygr.core.clock import ManualClock
from relaygr.engine.scheduler import Scheduler
from relaygr.engine.turns import Turnstile, turns_for


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.0005)


class Crowd:
    """Threads that take turns and note the order in which they had them."""

    def __init__(self, turns: Turnstile) -> None:
        self.turns, self.order, self.threads = turns, list[str](), list[threading.Thread]()

    def come(self, name: str, ranking: bool) -> None:
        before = sum(self.turns.waiting())

        def have() -> None:
            with self.turns.turn(ranking):
                self.order.append(name)

        thread = threading.Thread(target=have)
        self.threads.append(thread)
        thread.start()
        _until(lambda: sum(self.turns.waiting()) == before + 1)

    def wait(self) -> list[str]:
        for thread in self.threads:
            thread.join(20)
        return self.order


def test_rankings_go_before_generations_and_equals_in_order() -> None:
    turns = Turnstile(yield_s=100)
    crowd = Crowd(turns)
    with turns.turn(ranking=False):
        for name in ("g1", "r1", "g2", "r2"):
            crowd.come(name, name[0] == "r")
    assert crowd.wait() == ["r1", "r2", "g1", "g2"]


def test_a_generation_that_waited_goes_before_one_ranking_and_two_never_in_a_row() -> None:
    clock = ManualClock()
    turns = Turnstile(yield_s=0.05, clock=clock)
    crowd = Crowd(turns)
    with turns.turn(ranking=True):
        for name in ("g1", "g2", "r1", "r2"):
            crowd.come(name, name[0] == "r")
        clock.advance(0.05)
    assert crowd.wait() == ["g1", "r1", "g2", "r2"]


def test_after_a_generation_a_ranking_never_waits_for_another() -> None:
    clock = ManualClock()
    turns = Turnstile(yield_s=0.0, clock=clock)
    crowd = Crowd(turns)
    with turns.turn(ranking=False):
        for name in ("g1", "g2", "r1"):
            crowd.come(name, name[0] == "r")
    assert crowd.wait() == ["r1", "g1", "g2"]


def test_an_exception_gives_the_turn_back() -> None:
    turns = Turnstile()
    try:
        with turns.turn(ranking=True):
            raise KeyError("x")
    except KeyError:
        pass
    with turns.turn(ranking=False):
        assert turns.waiting() == (0, 0)


def test_only_one_has_a_turn_at_a_time() -> None:
    turns, inside, most = Turnstile(yield_s=0.0001), [0], [0]

    def have(ranking: bool) -> None:
        for _ in range(50):
            with turns.turn(ranking):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=have, args=(number % 2 == 0,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most == [1]
    assert not any(turns.waiting())


def test_a_ranking_waits_for_one_step_of_a_generation_and_goes_before_the_next() -> None:
    turns, engine = Turnstile(yield_s=100), FakeEngine()
    scheduler = Scheduler(engine, turns=turns)  # type: ignore[arg-type]
    try:
        crowd = Crowd(turns)
        with turns.turn(ranking=False):
            crowd.come("step", ranking=False)
            job = scheduler.rank(request("u"))
            _until(lambda: turns.waiting() == (1, 1))
            assert not engine.calls
            job.add_done_callback(lambda _: crowd.order.append("ranking"))
        assert result(job).logits.shape == (2, 1)
        assert crowd.wait() == ["ranking", "step"]
        # A step of a prefix is no ranking.
        with turns.turn(ranking=True):
            scheduler.prefix(user("v", 30))
            _until(lambda: turns.waiting() == (0, 1))
    finally:
        scheduler.close()


def test_nobody_takes_turns_where_there_are_cores_for_both() -> None:
    assert turns_for(1, 2, 0.05) is None
    assert isinstance(turns_for(2, 3, 0.05), Turnstile)
