"""Random lives of history stores beside a plain dict, on every back-end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from store_backends import ROW, Backend, batch

from relaygr.core.errors import RequestError
from relaygr.data.stores import Appended, HistoryStore, Profile

KEEP, WINDOW, KEYS = 50, 6, 2
OWNERS = st.tuples(st.sampled_from(["t1", "t2"]), st.sampled_from(["u", "v", "用户"]))
# Few values, so that duplicates and late events are common.
ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 1)), max_size=45)


@dataclass
class Life:
    """What a plain model knows of one user."""

    events: list[ROW] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    first: int = 0
    keys: dict[str, tuple[list[ROW], Appended]] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    offset_s: int = 0

    def append(self, rows: list[ROW], dedupe: bool) -> Appended:
        duplicates = late = 0
        for row in rows:
            if dedupe and row in self.events[max(self.first, len(self.events) - WINDOW) :]:
                duplicates += 1
                continue
            newest_s = self.times[-1] if self.times else 0
            late += row[1] < newest_s
            self.events.append(row)
            self.times.append(max(row[1], newest_s))
        return Appended(len(self.events), len(rows) - duplicates, duplicates, late)

    def trim(self) -> None:
        self.first = max(self.first, len(self.events) - KEEP)


class StoreMachine(RuleBasedStateMachine):
    backend: Backend  # set by the test; one place for all examples, emptied at the end of each

    def __init__(self) -> None:
        super().__init__()
        self.lives: dict[tuple[str, str], Life] = {}
        self.store = self.open()

    def open(self) -> HistoryStore:
        return self.backend.open(keep_events=KEEP, dedupe_events=WINDOW, keys_per_user=KEYS)

    def teardown(self) -> None:
        for owner in self.lives:
            self.store.delete(*owner)
        assert self.store.count() == 0
        self.backend.close()

    @rule(
        owner=OWNERS,
        rows=ROWS,
        key=st.sampled_from([None, None, "a", "b", "c"]),
        dedupe=st.sampled_from([None, True, False]),
    )
    def append(self, owner: tuple[str, str], rows: list[ROW], key: str | None, dedupe: bool | None) -> None:
        life = self.lives.get(owner, Life())
        if key in life.keys:
            self.append_again(owner, rows, key)
            return
        wanted = life.append(rows, (key is None) if dedupe is None else dedupe)
        answer = self.store.append(*owner, batch(*rows), key, dedupe)
        assert answer == wanted
        assert answer.events.timestamps.tolist() == life.times[len(life.times) - answer.accepted :]
        if key is not None:
            life.keys[key] = (rows, answer)
            life.keys = dict(list(life.keys.items())[-KEYS:])
        life.trim()
        if answer.accepted or key is not None:
            self.lives[owner] = life

    def append_again(self, owner: tuple[str, str], rows: list[ROW], key: str) -> None:
        before, answer = self.lives[owner].keys[key]
        again = self.store.append(*owner, batch(*before), key)
        assert (again.replayed, again.sequence, again.late) == (True, answer.sequence, answer.late)
        assert (again.accepted, again.duplicates) == (answer.accepted, answer.duplicates)
        if rows != before:
            with pytest.raises(RequestError, match="was used for other events"):
                self.store.append(*owner, batch(*rows), key)

    @rule(owner=OWNERS, newest=st.integers(0, KEEP + 40))
    def load(self, owner: tuple[str, str], newest: int) -> None:
        life = self.lives.get(owner, Life())
        found = self.store.load(*owner, newest)
        first = max(life.first, len(life.events) - newest)
        columns = (found.items, found.sent_timestamps, found.actions)
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == life.events[first:]
        assert found.timestamps.tolist() == life.times[first:]
        assert (found.first_sequence, found.total) == (first, len(life.events))

    @rule(owner=OWNERS, slots=st.lists(st.integers(-5, 5), max_size=3), offset_s=st.integers(-9, 9))
    def set_profile(self, owner: tuple[str, str], slots: list[int], offset_s: int) -> None:
        self.store.set_profile(*owner, Profile(np.array(slots, np.int64), offset_s))
        life = self.lives.setdefault(owner, Life())
        life.slots, life.offset_s = slots, offset_s

    @rule(owner=OWNERS)
    def profile(self, owner: tuple[str, str]) -> None:
        life, found = self.lives.get(owner, Life()), self.store.profile(*owner)
        assert (found.contextual.tolist(), found.utc_offset_s) == (life.slots, life.offset_s)

    @rule(owner=OWNERS)
    def delete(self, owner: tuple[str, str]) -> None:
        life = self.lives.pop(owner, Life())
        assert self.store.delete(*owner) == len(life.events) - life.first

    @rule()
    def open_again(self) -> None:
        if self.backend.name != "memory":
            self.store.close()
            self.store = self.open()

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @invariant()
    def counts(self) -> None:
        assert self.store.count() == len(self.lives)


def test_random_lives(backend: Backend) -> None:
    class Machine(StoreMachine):
        pass

    Machine.backend = backend
    chosen = settings(
        max_examples=25,
        stateful_step_count=20,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Machine, settings=chosen)
