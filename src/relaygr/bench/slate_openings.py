"""How long it takes to open hard rules: several windows and minimums together, and many rules at random.

Tests and `bench slate` draw from the same requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from relaygr.bench.slate_cases import case
from relaygr.listwise.errors import InfeasibleError
from relaygr.listwise.masks import never
from relaygr.listwise.pool import Head, Pool, Shown
from relaygr.listwise.rules.document import AnyRule, Cap, Gap, Minimum, RuleDocument
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.slates import LOOKAHEAD_SHARE

Tell = Callable[[str], None]
Opening = tuple[RuleSet, Pool, int, Shown | None]
LIMIT_MS = 50.0  # the default of a server


@dataclass(frozen=True)
class Planted:
    """Sizes of a request that hides one list of its first `length` items among the others.

    Attributes:
        share: of the other items in each class that a minimum demands.
    """

    candidates: int = 80
    length: int = 10
    topics: int = 4
    authors: int = 8
    minimums: int = 2
    count: int = 3
    share: float = 0.03
    window: int = 3

    def request(self, seed: int) -> tuple[RuleSet, Pool]:
        rng = np.random.default_rng(seed)
        others = self.candidates - self.length
        attributes = {}
        for name, values in (("topic", self.topics), ("author", self.authors)):
            listed: list[int] = []
            for _ in range(self.length):
                recent = listed[-self.window + 1 :]
                listed.append(int(rng.choice([value for value in range(values) if value not in recent])))
            attributes[name] = np.array([*listed, *rng.integers(0, values, others)])
        rules: list[AnyRule] = [
            Cap(name="topics", attribute="topic", most=1, window=self.window),
            Gap(name="authors", attribute="author", distance=self.window),
        ]
        for at in range(self.minimums):
            inside = np.concatenate([np.zeros(self.length, dtype=bool), rng.random(others) < self.share])
            inside[rng.choice(self.length, self.count, replace=False)] = True
            attributes[f"class{at}"] = inside
            rules.append(Minimum(name=f"class{at}", attribute=f"class{at}", values=(1,), count=self.count))
        order = rng.permutation(self.candidates)
        pool = Pool(
            ids=np.arange(self.candidates, dtype=np.int64),
            heads=(Head("like"),),
            outputs=np.linspace(1, 0, self.candidates, dtype=np.float32)[:, None],
            attributes={name: column[order].astype(np.int64) for name, column in attributes.items()},
        )
        return RuleSet(RuleDocument(id="planted", rules=tuple(rules))), pool


class OpeningCell(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one kind, opened with a limit of time and without.

    Attributes:
        limit_ms: `budget_ms` of the list layer, half of which is for this; 0 for none.
        p50_ms, most_ms: of the clock.
        relaxed: requests that gave up a rule although a list may satisfy all; with `hidden`, one does.
        hidden: whether each request hides such a list.
    """

    requests: int
    candidates: int
    length: int
    rules: str
    limit_ms: float
    p50_ms: float
    most_ms: float
    relaxed: int
    hidden: bool


_HIDDEN = (
    Planted(),
    Planted(candidates=300, length=20, minimums=4, topics=6, authors=12, count=5, share=0.02),
    Planted(candidates=300, length=30, authors=10, count=6, share=0.02),
)


def measure_openings(requests: int, tell: Tell) -> Iterator[OpeningCell]:
    """`requests` of each kind; the first of each is opened once before, so that no import is timed."""
    for sizes in _HIDDEN:
        rules = f"cap, gap, {sizes.minimums} minimums of {sizes.count}"
        drawn: list[Opening] = [(*sizes.request(seed), sizes.length, None) for seed in range(requests)]
        yield from _cells(drawn, rules, tell, hidden=True)
    many = [case(seed, candidates=300, length=30, rules=16, shown=6, authors=8) for seed in range(requests)]
    yield from _cells([(one.rules, one.pool, one.length, one.shown) for one in many], "up to 16", tell)


def _cells(drawn: list[Opening], rules: str, tell: Tell, hidden: bool = False) -> Iterator[OpeningCell]:
    for limit_ms in (0.0, LIMIT_MS):
        tell(f"opening rules: {rules}, " + (f"{limit_ms:g} ms" if limit_ms else "no limit"))
        _open(drawn[0], limit_ms)
        found = [_open(one, limit_ms) for one in drawn]
        times = [ms for ms, _ in found]
        yield OpeningCell(
            requests=len(drawn),
            candidates=len(drawn[0][1]),
            length=drawn[0][2],
            rules=rules,
            limit_ms=limit_ms,
            p50_ms=float(np.median(times)),
            most_ms=max(times),
            relaxed=sum(relaxed for _, relaxed in found),
            hidden=hidden,
        )


def _open(one: Opening, limit_ms: float) -> tuple[float, bool]:
    """Milliseconds, and whether a rule was given up."""
    rules, pool, length, shown = one
    begun_s = time.perf_counter()
    late = (
        never if not limit_ms else lambda: 1000 * (time.perf_counter() - begun_s) > LOOKAHEAD_SHARE * limit_ms
    )
    try:
        relaxed = bool(rules.open(pool, np.linspace(1, 0, len(pool)), length, shown, late=late).relaxations)
    except InfeasibleError:
        relaxed = True
    return 1000 * (time.perf_counter() - begun_s), relaxed
