"""Random lives of a real generator on a clock that stands still: cancels, deadlines, faults, swaps."""

from __future__ import annotations

from typing import Any

import numpy as np
from generate_rig import SETTINGS, catalogue, decoder, generator, of_tokens, of_user, one, rows
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relaygr.config.generator import GeneratorConfig
from relaygr.core.clock import ManualClock
from relaygr.core.errors import RelayError
from relaygr.engine.generation.dispatch import Dispatch, Line, Wave
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.jobs import GenerateJob
from relaygr.engine.generation.seats import Generated
from relaygr.generation.catalogue.versions import Catalogues
from relaygr.generation.errors import GenerateDeadlineError, InternalError

RNG = np.random.default_rng(0)
VERSIONS = [catalogue(seed) for seed in range(2)]
KINDS = [
    of_tokens(RNG.integers(0, 50, 150).tolist(), beam_width=3),
    of_tokens(RNG.integers(0, 50, 9).tolist(), beam_width=[1, 12, 4]),
    of_user("u", RNG.integers(0, 400, 40).tolist(), beam_width=7),
    of_user("u", RNG.integers(0, 400, 12).tolist(), beam_width=2, normalization="full"),
    of_user("v", RNG.integers(0, 400, 55).tolist(), beam_width=5, deny=list(range(200))),
]
LIMITS = {**SETTINGS, "max_beam_rows": 14, "max_beam_width": 12, "beam_width": 2}
_SOLO: dict[tuple[int, int], Any] = {}


def solo(version: int, kind: int) -> Any:
    """What a request gets by itself."""
    if (version, kind) not in _SOLO:
        catalogues = Catalogues()
        catalogues.install(VERSIONS[version])
        backend = generator(catalogues=catalogues)
        _SOLO[version, kind] = rows(one(backend, KINDS[kind]))
        backend.close()
    return _SOLO[version, kind]


class Lives(RuleBasedStateMachine):
    """The parts of a scheduler, driven as its thread drives them."""

    backend: Generator

    @initialize(continuous=st.booleans(), host=st.booleans())
    def begin(self, continuous: bool, host: bool) -> None:
        self.clock, self.catalogues = ManualClock(), Catalogues()
        self.catalogues.install(VERSIONS[0])
        mode = "continuous" if continuous else "fixed"
        limits = {**LIMITS, "scheduling": mode, "host_bytes": (1 << 20) * host}
        self.backend = generator(limits, clock=self.clock, catalogues=self.catalogues, overlap=False)
        self.dispatch = Dispatch(self.backend, GeneratorConfig(**limits), self.clock)
        self.wave = Wave(self.backend, self.clock, lockstep=not continuous)
        self.line = Line(100)
        self.jobs: list[tuple[GenerateJob[Any], int]] = []
        self.ends: dict[GenerateJob[Any], int] = {}
        self.faulty = False

    @rule(
        kinds=st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=5),
        deadline_s=st.sampled_from([0.35, 3.0, 1000.0, 1000.0]),
    )
    def ask(self, kinds: list[int], deadline_s: float) -> None:
        for kind in kinds:
            self._ask(kind, deadline_s)

    def _ask(self, kind: int, deadline_s: float) -> None:
        now = self.clock.now_s()
        job: GenerateJob[Any] = GenerateJob(self.backend.check(KINDS[kind]), now + deadline_s, now)
        job.add_done_callback(lambda _: self.ends.update({job: self.ends.get(job, 0) + 1}))
        self.line.put(job)
        self.jobs.append((job, kind))

    @rule(times=st.integers(1, 8))
    def turns(self, times: int) -> None:
        for _ in range(times):
            self.turn()

    def turn(self) -> None:
        """What the executor does once."""
        for job in self.line.sweep():
            job.ask.close()
        waiting = tuple(self.line)
        if self.dispatch.hold_s(waiting, self.wave) <= 0:
            self.line.remove(self.dispatch.board(waiting, self.wave))
        self.wave.step()
        self.clock.advance(0.1)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.jobs[data.draw(st.integers(0, len(self.jobs) - 1))][0].cancel()

    @precondition(lambda self: self.wave.riders)
    @rule(what=st.sampled_from(["remember", "prefill", "step", "logits"]))
    def fault(self, what: str) -> None:
        """The next turn meets a model that fails once."""
        model, failed = self.backend.decoder, []
        method = getattr(model, what)

        def failing(*args: Any, **kwargs: Any) -> Any:
            if not failed:
                failed.append(True)
                raise MemoryError("injected")
            return method(*args, **kwargs)

        object.__setattr__(model, what, failing)
        try:
            self.turn()
        finally:
            object.__delattr__(model, what)
        self.faulty |= bool(failed)

    @rule()
    def forget(self) -> None:
        for job, _ in self.jobs:
            if job.owner == ("default", "u"):
                job.cancel("deleted")
        self.backend.forget("default", "u")

    @rule(version=st.integers(0, 1))
    def swap(self, version: int) -> None:
        self.catalogues.install(VERSIONS[version])

    @rule()
    def chore(self) -> None:
        self.backend.chore()

    @invariant()
    def what_is_held_is_held_by_those_who_run(self) -> None:
        stats = self.backend.stats()
        assert stats.seats == len(self.wave)
        assert sum(rider.need.rows for rider in self.wave.riders) <= 14
        assert stats.beam_bytes == sum(rider.seat.kv.unshared for rider in self.wave.riders)  # type: ignore[attr-defined]
        assert all(count == 1 for count in self.ends.values())

    def teardown(self) -> None:
        if not hasattr(self, "wave"):
            return
        for _ in range(200):
            if not self.wave.riders and not len(self.line):
                break
            self.turn()
        self.turn()
        assert not self.wave.riders
        labels = {version.label: number for number, version in enumerate(VERSIONS)}
        for job, kind in self.jobs:
            assert self.ends[job] == 1
            error = job.exception(0)
            if error is None:
                found = job.result()
                assert isinstance(found, Generated)
                assert rows(found) == solo(labels[found.result.catalog_version], kind)
            elif isinstance(error, InternalError):
                assert self.faulty
            else:
                assert isinstance(error, RelayError)
                if isinstance(error, GenerateDeadlineError):
                    assert job.deadline_s <= self.clock.now_s()
        stats = self.backend.stats()
        assert (stats.seats, stats.beam_bytes, stats.scratch_bytes, stats.pages.pinned_pages) == (0, 0, 0, 0)
        assert self.catalogues.status().pins == 0
        self.backend._states.tiers.books.audit()
        self.backend.close()


TestGeneratorLives = Lives.TestCase
TestGeneratorLives.settings = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_the_machine_has_one_decoder() -> None:
    assert decoder() is decoder()
