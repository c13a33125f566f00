"""Random lives of prompts with recurrent states: grown, edited, evicted, off-loaded, loaded, deleted."""

from __future__ import annotations

from typing import Any

import numpy as np
from generate_rig import ITEMS, history, of_user, one, rows, run
from hybrid_rig import audit, hybrid_generator, shelf_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relaygr.config.host import HostConfig
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.prompts import Asked
from relaygr.engine.generation.seats import Generated, GenerateSeat
from relaygr.generation.errors import InternalError

BASE = np.random.default_rng(0).integers(0, ITEMS, 90).tolist()
LENGTHS = (4, 15, 16, 40, 47, 88)  # 19, 63, 67, 163, 191 and 355 tokens
EDITS = (None, 3, 14, 38)
# Room for about three long prompts, and for a few states, on the device and in host memory.
TIGHT = {"device_bytes": 1 << 20, "host_bytes": 1 << 20, "state_share": 0.02, "state_snapshots": 3}
USERS = ("a", "b", "c")
_SOLO: dict[tuple[int, int | None], Any] = {}


def content(length: int, edit: int | None) -> list[int]:
    items = BASE[:length]
    if edit is not None and edit < length:
        items[edit] = (items[edit] + 1) % ITEMS
    return items


def asked(user: str, length: int, edit: int | None) -> Asked:
    return of_user(user, content(length, edit), beam_width=4)


def solo(length: int, edit: int | None) -> Any:
    """What a prompt gets where nothing was before it."""
    edit = None if edit is None or edit >= length else edit
    if (length, edit) not in _SOLO:
        backend = hybrid_generator(kind="fat")
        _SOLO[length, edit] = rows(one(backend, asked("x", length, edit)))
        backend.close()
    return _SOLO[length, edit]


class StateLives(RuleBasedStateMachine):
    """One generator with little memory; whatever happens, answers are those of a fresh one, bit for bit."""

    backend: Generator

    @initialize(
        states=st.sampled_from([0.003, 0.008, 0.02]),
        host=st.sampled_from([True, True, False]),
        inclusive=st.booleans(),
    )
    def begin(self, states: float, host: bool, inclusive: bool) -> None:
        settings = {**TIGHT, "state_share": states, "host_bytes": (1 << 20) * host}
        below = HostConfig(
            run_chunk_tokens=8,
            load="always",
            clean_target=0.9,
            tier_mode="inclusive" if inclusive else "exclusive",
        )
        self.backend = hybrid_generator(settings, kind="fat", host=below, overlap=False)
        self.seats: list[tuple[GenerateSeat, int, int | None]] = []

    @rule(
        user=st.sampled_from(USERS),
        length=st.sampled_from(LENGTHS),
        edit=st.sampled_from(EDITS),
        rest=st.booleans(),
    )
    def generate(self, user: str, length: int, edit: int | None, rest: bool) -> None:
        if rest:
            self.off_load()
        ask = self.backend.check(asked(user, length, edit))
        seat = self.backend.seat(ask)
        if seat is None:
            assert self.seats, "nobody holds anything, and there is no room"
        else:
            self.finish(seat, length, edit)
        ask.close()

    @precondition(lambda self: not self.seats)
    @rule(length=st.sampled_from(LENGTHS), edit=st.sampled_from(EDITS))
    def together(self, length: int, edit: int | None) -> None:
        if self.backend.memory.device.states // self.backend.memory.state_bytes < 2:
            return
        answers = run(self.backend, [asked("a", length, edit), asked("b", 15, None)])
        assert [rows(answer) for answer in answers] == [solo(length, edit), solo(15, None)]

    @precondition(lambda self: len(self.seats) < 2)
    @rule(user=st.sampled_from(USERS), length=st.sampled_from(LENGTHS), edit=st.sampled_from(EDITS))
    def begin_one(self, user: str, length: int, edit: int | None) -> None:
        ask = self.backend.check(asked(user, length, edit))
        seat = self.backend.seat(ask)
        if seat is None:
            ask.close()
        else:
            self.seats.append((seat, length, edit))

    @precondition(lambda self: self.seats)
    @rule(which=st.integers(0, 1), steps=st.integers(1, 4))
    def step(self, which: int, steps: int) -> None:
        seat = self.seats[which % len(self.seats)][0]
        for _ in range(steps):
            if seat.outcome is None:
                (self.backend.round if seat.prefilled else self.backend.prefill)([seat])

    @precondition(lambda self: self.seats)
    @rule(which=st.integers(0, 1), finish=st.booleans())
    def end(self, which: int, finish: bool) -> None:
        seat, length, edit = self.seats.pop(which % len(self.seats))
        if finish:
            self.finish(seat, length, edit)
        seat.close()
        seat.ask.close()

    def finish(self, seat: GenerateSeat, length: int, edit: int | None) -> None:
        while seat.outcome is None:
            (self.backend.round if seat.prefilled else self.backend.prefill)([seat])
        if not isinstance(seat.outcome, InternalError):
            assert isinstance(seat.outcome, Generated)
            assert rows(seat.outcome) == solo(length, edit)
        seat.close()

    @precondition(lambda self: self.seats and self.seats[0][0].outcome is None)
    @rule()
    def fault(self) -> None:
        """A pass fails half-way: its request ends, and nothing of it is found."""
        seat, model = self.seats[0][0], self.backend.decoder
        failing = "step" if seat.prefilled else "remember"

        def fail(*_: Any) -> Any:
            raise MemoryError("injected")

        object.__setattr__(model, failing, fail)
        try:
            (self.backend.round if seat.prefilled else self.backend.prefill)([seat])
        finally:
            object.__delattr__(model, failing)

    @rule(user=st.sampled_from(USERS), length=st.sampled_from(LENGTHS), edit=st.sampled_from(EDITS))
    def encode(self, user: str, length: int, edit: int | None) -> None:
        ask = self.backend.check(Asked(history=history(user, content(length, edit))))
        for _ in range(12):
            _, done = self.backend.encode(ask)
            if done is not None:
                break
        else:
            raise AssertionError("encoding a prompt comes to no end")
        if done.resident:
            assert self.backend.need(ask).tokens <= 64
        ask.close()

    @rule()
    def off_load(self) -> None:
        for _ in range(200):
            if not self.backend.chore():
                break
        else:
            raise AssertionError("chores come to no end")

    @rule(user=st.sampled_from(USERS))
    def forget(self, user: str) -> None:
        self.backend.forget("default", user)
        ref = self.backend.check(asked(user, 88, None)).refs[0]
        assert self.backend._states.near([ref]) == 0
        assert not [key for key in shelf_of(self.backend)._kept if key.user == user]

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "seats"):
            audit(self.backend, [seat for seat, _, _ in self.seats if seat._open])

    def teardown(self) -> None:
        if not hasattr(self, "seats"):
            return
        while self.seats:
            self.end(0, True)
        stats = self.backend.stats()
        assert stats.states is not None
        assert (stats.seats, stats.beam_bytes, stats.states.working, stats.pages.pinned_pages) == (0, 0, 0, 0)
        for user in USERS:
            self.backend.forget("default", user)
        after = self.backend.stats()
        assert after.states is not None
        assert (after.states.kept, after.states.host_kept, after.pages.entries) == (0, 0, 0)
        assert after.states.free == shelf_of(self.backend).device.nbytes
        self.backend.close()


TestStateLives = StateLives.TestCase
TestStateLives.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
