"""The round loop: cancels, deadlines, faults that stay with their request, preparation beside forwards."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from search_cases import TableContext, TableModel, corpus, plan_of

from relaygr.core.clock import ManualClock, MonotonicClock
from relaygr.core.errors import BackendError, CancelledError, DeadlineError
from relaygr.generation.catalogue.errors import CatalogueError, FilterError
from relaygr.generation.catalogue.filters import Filter, Wanted, make_filter
from relaygr.generation.errors import (
    CatalogUnavailableError,
    ErrorCode,
    FilterFailedError,
    GenerateCancelledError,
    GenerateDeadlineError,
    GenerateError,
    InternalError,
    ModelNanError,
)
from relaygr.generation.results import Found, Underflow
from relaygr.generation.rounds import Rounds
from relaygr.generation.search import Search, SearchPlan

OF = corpus(0, n=200)
Outcomes = dict[int, list[Found | GenerateError]]


class Bench:
    """Searches with everything that was ever told of them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.model = TableModel(OF.vocab_size)
        self.rounds: Rounds[TableContext] = Rounds(self.model, self.clock)
        self.told: Outcomes = {}
        self.cancelled: set[int] = set()

    def search(
        self, prompt: int, plan: SearchPlan | None = None, deadline_s: float = float("inf")
    ) -> Search[TableContext]:
        self.told[prompt] = []
        return Search(
            plan if plan is not None else plan_of(OF, [3, 4, 5], request_id=f"r{prompt}"),
            TableContext(prompt),
            self.told[prompt].append,
            deadline_s=deadline_s,
            cancelled=lambda: prompt in self.cancelled,
        )

    def outcome(self, prompt: int) -> Found | GenerateError:
        assert len(self.told[prompt]) == 1
        return self.told[prompt][0]

    def failed(self, prompt: int, kind: type[GenerateError]) -> GenerateError:
        error = self.outcome(prompt)
        assert type(error) is kind
        assert error.request_id == f"r{prompt}"
        return error

    def check_alone(self, *prompts: int) -> None:
        """These are what each is alone."""
        for prompt in prompts:
            other = Bench()
            other.rounds.run([other.search(prompt)])
            found = self.outcome(prompt)
            assert isinstance(found, Found)
            assert found.rows == other.outcome(prompt).rows


def test_expired_and_cancelled_requests_are_not_computed() -> None:
    bench = Bench()
    bench.clock.advance(5.0)
    bench.cancelled.add(1)
    bench.rounds.run([bench.search(0, deadline_s=5.0), bench.search(1)])
    assert isinstance(bench.failed(0, GenerateDeadlineError), DeadlineError)
    assert isinstance(bench.failed(1, GenerateCancelledError), CancelledError)
    assert (bench.model.starts, bench.model.forwards, bench.model.asked) == (0, [], [])


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_ending_during_a_forward_frees_the_place_before_the_next(how: str, step: int) -> None:
    bench = Bench()
    seen: list[int] = []

    def during() -> None:
        seen.append(len(bench.told[1]))
        if len(bench.model.forwards) == step + 1:
            if how == "cancel":
                bench.cancelled.add(1)
            else:
                bench.clock.advance(2.0)

    bench.model.during_step = during
    bench.rounds.run([bench.search(0), bench.search(1, deadline_s=1.0), bench.search(2)])
    wanted = GenerateCancelledError if how == "cancel" else GenerateDeadlineError
    assert f"round {step + 2}" in str(bench.failed(1, wanted))
    assert bench.model.forwards == [[0, 1, 2], [0, 1, 2] if step else [0, 2]]
    # It was told before the next forward began.
    assert seen == [0, 0] if step else [0, 1]
    bench.check_alone(0, 2)


def test_a_neighbour_that_ends_while_others_are_selected_is_not_fed() -> None:
    bench = Bench()
    logits = bench.model.logits

    def slow(hidden, columns):
        bench.clock.advance(1.0)
        return logits(hidden, columns)

    bench.model.logits = slow
    bench.rounds.run([bench.search(0, deadline_s=1.5), bench.search(1)])
    bench.failed(0, GenerateDeadlineError)
    assert bench.model.forwards == [[1], [1]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_model_that_gives_no_numbers_fails_that_request_only(bad: float, depth: int) -> None:
    bench = Bench()
    bench.model.row(1, ())
    probe = Bench()
    probe.rounds.run([probe.search(1)])
    best = probe.outcome(1).rows[0].sid
    prefix = tuple(OF.tables[level][code] for level, code in enumerate(best[:depth]))
    bench.model.broken[1, prefix] = bad
    bench.rounds.run([bench.search(prompt) for prompt in (0, 1, 2)])
    error = bench.failed(1, ModelNanError)
    assert (error.code, isinstance(error, BackendError)) == (ErrorCode.MODEL_NAN, True)
    bench.check_alone(0, 2)
    assert all(forward == [0, 2] for forward in bench.model.forwards[depth:])


class FaultyFilter:
    """Passes on to `good` but fails at one level."""

    everything = False

    def __init__(self, good: Filter, level: int, fault: Exception | None) -> None:
        self.good, self.level, self.fault = good, level, fault

    def alive(self, level: int, nodes: np.ndarray) -> np.ndarray:
        if level == self.level:
            if self.fault is not None:
                raise self.fault
            return np.zeros(len(nodes), np.bool_)
        return self.good.alive(level, nodes)

    def passes(self, positions: np.ndarray) -> np.ndarray:
        if self.level == 9:
            return np.zeros(len(positions), np.bool_)
        return self.good.passes(positions)


@pytest.mark.parametrize("worker", [False, True])
@pytest.mark.parametrize(
    ("level", "fault", "kind"),
    [
        (1, FilterError("gone"), FilterFailedError),
        (2, FilterError("gone"), FilterFailedError),
        (3, FilterError("gone"), FilterFailedError),
        (2, None, FilterFailedError),
        (9, None, FilterFailedError),
        (2, CatalogueError("torn"), CatalogUnavailableError),
        (2, IndexError("out of bounds"), InternalError),
        (3, MemoryError(), InternalError),
    ],
)
def test_faults_of_filters_and_catalogue_fail_their_request_and_nothing_decodes_without(
    level: int, fault: Exception | None, kind: type[GenerateError], worker: bool
) -> None:
    bench = Bench()
    some = make_filter(OF.index, Wanted(deny=OF.index.items[:20].tolist()))
    broken = plan_of(OF, [3, 4, 5], items=FaultyFilter(some, level, fault), request_id="r1")
    with ThreadPoolExecutor(1) as pool:
        bench.rounds = Rounds(bench.model, bench.clock, pool if worker else None)
        bench.rounds.run([bench.search(0), bench.search(1, broken), bench.search(2)])
    assert bench.failed(1, kind).__cause__ is not None
    bench.check_alone(0, 2)


@pytest.mark.parametrize("when", ["start", "step", "short", "logits"])
def test_a_failing_forward_ends_all_of_its_group_and_none_waits(when: str) -> None:
    bench = Bench()

    def broken(*_):
        raise RuntimeError("no more memory")

    if when == "short":
        step = bench.model.step
        bench.model.step = lambda feeds: step(feeds)[:-1]
    else:
        setattr(bench.model, when, broken)
    bench.rounds.run([bench.search(0), bench.search(1)])
    for prompt in (0, 1):
        bench.failed(prompt, InternalError)
    assert len(bench.rounds) == 0


def test_being_stopped_ends_all_and_goes_on_up() -> None:
    bench = Bench()

    def stopped(_):
        raise KeyboardInterrupt

    bench.model.step = stopped
    with pytest.raises(KeyboardInterrupt):
        bench.rounds.run([bench.search(0), bench.search(1)])
    bench.failed(0, InternalError)
    bench.failed(1, InternalError)


def test_nothing_allowed_is_a_normal_empty_result_after_one_round() -> None:
    bench = Bench()
    nothing = make_filter(OF.index, Wanted(allow=[]))
    bench.rounds.run([bench.search(0, plan_of(OF, [3, 4, 5], items=nothing)), bench.search(1)])
    found = bench.outcome(0)
    assert (found.rows, found.requested, found.underflow) == ((), 5, Underflow.CATALOG_EXHAUSTED)
    assert bench.model.forwards == [[1], [1]]
    bench.check_alone(1)


def test_a_model_without_any_probability_gives_an_empty_result_with_its_reason() -> None:
    bench = Bench()
    bench.model.broken[0, ()] = -float("inf")
    bench.rounds.run([bench.search(0)])
    found = bench.outcome(0)
    assert (found.rows, found.underflow) == ((), Underflow.MODEL_EXHAUSTED)


def test_requests_may_join_those_on_their_way() -> None:
    bench = Bench()
    bench.rounds.join([bench.search(0)])
    bench.rounds.advance()
    assert (len(bench.rounds), bench.rounds.rows) == (1, 4)
    bench.rounds.join([bench.search(1), bench.search(2)])
    assert (len(bench.rounds), bench.rounds.rows) == (3, 12)
    while len(bench.rounds):
        bench.rounds.advance()
    assert bench.model.forwards == [[0], [0, 1, 2], [1, 2]]
    bench.check_alone(0, 1, 2)


def test_timings_and_counts_have_one_entry_a_round() -> None:
    bench = Bench()
    with ThreadPoolExecutor(1) as pool:
        bench.rounds = Rounds(bench.model, MonotonicClock(), pool)
        bench.rounds.run([bench.search(0)])
    found = bench.outcome(0)
    times = found.timings
    assert times.prefill_ms > 0
    for name in ("head_ms", "selection_ms", "preparation_ms", "waited_ms"):
        assert len(getattr(times, name)) == 3
        assert min(getattr(times, name)) >= 0
    assert len(times.forward_ms) == 2
    assert found.kept == (3, 4, 5)
    assert found.candidates[0] == OF.index.nodes(1)


def test_preparing_a_round_runs_beside_the_forward_before_it() -> None:
    bench = Bench()
    search, computing = bench.search(0), threading.Event()
    prepare = search.prepare
    # Work that ends only when a forward runs, and forwards that end only when the work is done: if either
    # came later, this would time out.
    search.prepare = lambda: (computing.wait(30), prepare())[1]

    def until_prepared() -> None:
        computing.set()
        assert not wait([search.pool], timeout=30).not_done

    bench.model.during_step = until_prepared
    start = bench.model.start
    bench.model.start = lambda contexts: (until_prepared(), start(contexts))[1]
    with ThreadPoolExecutor(1) as pool:
        bench.rounds = Rounds(bench.model, MonotonicClock(), pool)
        bench.rounds.run([search])
    assert isinstance(bench.outcome(0), Found)
    trace = bench.rounds.trace
    prepared = trace.spans("prepare")
    forwards = trace.spans("prefill") + trace.spans("forward")
    assert [len(prepared), len(forwards)] == [3, 3]
    for work, forward in zip(prepared, forwards, strict=True):
        assert work.thread != forward.thread == threading.get_ident()
        # The worker may begin while the forward is still being put together.
        assert work.end_s <= forward.end_s
        assert work.step == forward.step
    assert trace.hidden_share() > 0.0


def test_without_a_worker_preparing_is_seen_on_the_critical_path() -> None:
    bench = Bench()
    bench.rounds = Rounds(bench.model, MonotonicClock())
    bench.rounds.run([bench.search(0)])
    assert len(bench.rounds.trace.spans("prepare")) == 3
    assert bench.rounds.trace.hidden_share() == 0.0


class RoundsMachine(RuleBasedStateMachine):
    """Requests come, are cancelled, expire and break at any time; each is told once, the rest as if alone."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.searches: dict[int, Search[TableContext]] = {}
        self.count = 0

    @rule(count=st.integers(1, 3), late=st.booleans(), broken=st.booleans())
    def join(self, count: int, late: bool, broken: bool) -> None:
        fresh = []
        for at in range(count):
            prompt = self.count
            self.count += 1
            now = self.bench.clock.now_s()
            fresh.append(
                self.bench.search(prompt, deadline_s=now + 1.5 if late and at == 0 else float("inf"))
            )
            self.searches[prompt] = fresh[-1]
            if broken and at == 1:
                self.bench.model.broken[prompt, ()] = float("nan")
        self.bench.rounds.join(fresh)

    @precondition(lambda self: self.searches)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.bench.cancelled.add(data.draw(st.sampled_from(sorted(self.searches))))

    @rule()
    def wait(self) -> None:
        self.bench.clock.advance(1.0)

    @rule()
    def advance(self) -> None:
        before = len(self.bench.model.forwards)
        self.bench.rounds.advance()
        for forward in self.bench.model.forwards[before:]:
            assert not set(forward) & self.bench.cancelled

    @invariant()
    def told_at_most_once_and_in_step_with_the_group(self) -> None:
        live = sum(search.live for search in self.searches.values())
        assert live == len(self.bench.rounds)
        for prompt, search in self.searches.items():
            assert len(self.bench.told[prompt]) == (0 if search.live else 1)

    def teardown(self) -> None:
        for _ in range(4):
            self.bench.rounds.advance()
        assert len(self.bench.rounds) == 0
        for prompt in self.searches:
            if isinstance(self.bench.outcome(prompt), Found):
                self.bench.check_alone(prompt)


TestRoundsMachine = RoundsMachine.TestCase
TestRoundsMachine.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
