"""Random lives of catalogue versions against a plain stack: no pin sees a freed one, none stays too long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from catalogue_reference import Row, build
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relaygr.generation.catalogue.artefact import Catalogue, make_catalogue
from relaygr.generation.catalogue.errors import LoadError, UnavailableError
from relaygr.generation.catalogue.filters import Wanted
from relaygr.generation.catalogue.pinned import CatalogVersion, PinnedCatalogue
from relaygr.generation.catalogue.settings import CatalogueSettings
from relaygr.generation.catalogue.versions import Catalogues

ITEMS = range(8)
PICK = st.integers(0, 1 << 16)


@dataclass(eq=False)
class Known:
    """A version as the model knows it."""

    version: CatalogVersion
    items: list[int]
    as_of_s: float


@dataclass(eq=False)
class Held:
    """A pin and what was denied when it was taken."""

    pin: PinnedCatalogue
    of: Known
    denied: set[int]


class Lives(RuleBasedStateMachine):
    @initialize(keep=st.integers(1, 3))
    def start(self, keep: int) -> None:
        self.now, self.serial, self.keep = 100.0, 0, keep
        self.catalogues = Catalogues(
            CatalogueSettings(keep_versions=keep), checks=(self.check,), now_s=lambda: self.now
        )
        self.stack: list[Known] = []
        self.all: list[Known] = []
        self.held: list[Held] = []
        self.withdrawn: dict[int, float] = {}
        self.refuse = False
        self.failed = False

    def check(self, catalogue: Catalogue) -> None:
        if self.refuse:
            raise LoadError("refused")

    def denied(self, known: Known) -> set[int]:
        return {item for item in known.items if self.withdrawn.get(item, -1.0) >= known.as_of_s}

    @rule(
        items=st.sets(st.sampled_from(ITEMS), min_size=1),
        age=st.sampled_from([0.0, 1.5, 3.5]),
        bad=st.booleans(),
    )
    def load(self, items: set[int], age: float, bad: bool) -> None:
        self.serial += 1
        index = build([Row(item, (item,)) for item in items], (len(ITEMS),)).index
        found = make_catalogue(index, as_of_s=self.now - age, source=str(self.serial))
        small = bool(self.stack) and len(items) < len(self.stack[-1].items) / 2
        self.refuse = bad
        if bad or small:
            with pytest.raises(LoadError):
                self.catalogues.install(found)
            self.failed = True
            return
        version = self.catalogues.install(found)
        self.failed = False
        known = Known(version, sorted(items), found.header.as_of_s)
        self.stack = [*self.stack, known][-self.keep :]
        self.all.append(known)
        oldest = min(one.as_of_s for one in self.stack)
        self.withdrawn = {item: at for item, at in self.withdrawn.items() if at >= oldest}

    @precondition(lambda self: len(self.stack) > 1)
    @rule()
    def rollback(self) -> None:
        before = self.stack.pop()
        assert self.catalogues.rollback() is self.stack[-1].version
        assert before.version is not self.stack[-1].version

    @precondition(lambda self: len(self.stack) < 2)
    @rule()
    def rollback_is_refused(self) -> None:
        with pytest.raises(UnavailableError):
            self.catalogues.rollback()

    @precondition(lambda self: not self.stack)
    @rule()
    def pin_is_refused(self) -> None:
        with pytest.raises(UnavailableError):
            self.catalogues.pin()

    @precondition(lambda self: self.stack)
    @rule()
    def pin(self) -> None:
        self.held.append(Held(self.catalogues.pin(), self.stack[-1], self.denied(self.stack[-1])))

    @precondition(lambda self: self.held)
    @rule(pick=PICK, twice=st.booleans())
    def close(self, pick: int, twice: bool) -> None:
        held = self.held.pop(pick % len(self.held))
        held.pin.close()
        if twice:
            held.pin.close()

    @precondition(lambda self: self.stack)
    @rule(items=st.sets(st.sampled_from(ITEMS)))
    def withdraw(self, items: set[int]) -> None:
        self.catalogues.withdraw(sorted(items))
        self.withdrawn |= dict.fromkeys(items, self.now)

    @rule(items=st.sets(st.sampled_from(ITEMS)))
    def restore(self, items: set[int]) -> None:
        known = items & self.withdrawn.keys()
        assert self.catalogues.restore(sorted(items)) == len(known)
        for item in known:
            del self.withdrawn[item]

    @rule()
    def wait(self) -> None:
        self.now += 1.0

    @invariant()
    def pins_see_their_version(self) -> None:
        for held in self.held:
            assert held.pin.version is held.of.version
            index = held.pin.index
            assert index.items.tolist() == held.of.items
            passing = held.pin.filter(Wanted()).passes(np.arange(index.n_items))
            assert set(index.items[~passing].tolist()) == held.denied

    @invariant()
    def exactly_the_needed_versions_live(self) -> None:
        needed = {*(id(one) for one in self.stack), *(id(held.of) for held in self.held)}
        for known in self.all:
            assert known.version.freed is (id(known) not in needed)
        status = self.catalogues.status()
        assert list(status.kept) == [one.version.label for one in self.stack]
        assert len(status.kept) <= self.keep
        assert len(status.kept) + len(status.retired) == len(needed)
        assert status.pins == len(self.held)
        assert (status.error is not None) is self.failed
        assert status.number == (self.stack[-1].version.number if self.stack else 0)
        assert status.withdrawn == len(self.withdrawn)

    @invariant()
    def new_pins_see_the_newest_and_what_is_withdrawn(self) -> None:
        if not self.stack:
            return
        with self.catalogues.pin() as pin:
            assert pin.version is self.stack[-1].version
            denied = set(pin.index.items[pin.withdrawn].tolist())
        assert denied == self.denied(self.stack[-1])


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
