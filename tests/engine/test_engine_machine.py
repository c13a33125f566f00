"""Random life of an engine against a plain model: whatever happened before, scores equal a dense pass."""

from __future__ import annotations

import numpy as np
import pytest
from engine_models import CONFIG, KEPT, dense_logits, events, make_engine, profile

from relaygr.core.errors import RequestError
from relaygr.engine.history import IntColumn, UserHistory
from relaygr.engine.requests import RankRequest, RankResult
from relaygr.models.presets import AnyConfig

NAMES = [f"u{i}" for i in range(30)]  # 25 full rows fit, so that users are evicted


class Life:
    """Users whose events grow, change and shrink, and what the engine says of them."""

    def __init__(self, seed: int, config: AnyConfig = CONFIG) -> None:
        self.rng = np.random.default_rng(seed)
        self.config = config
        self.engine = make_engine(config, microbatch=int(self.rng.choice([3, 64])))
        self.users = {name: self._user(name, [], [], []) for name in NAMES}
        self.checked = 0

    def _user(self, name: str, items: IntColumn, times: IntColumn, actions: IntColumn) -> UserHistory:
        return UserHistory(name, items, times, actions, contextual=profile(self.config))

    def step(self) -> None:
        name = str(self.rng.choice(NAMES))
        action = self.rng.choice(
            ["append", "rank", "batch", "edit", "shorten", "prefetch", "forget", "bad"],
            p=[0.25, 0.2, 0.15, 0.1, 0.1, 0.1, 0.05, 0.05],
        )
        getattr(self, f"_{action}")(name)
        stats = self.engine.cache_stats()
        assert stats.free_pages + stats.pinned_pages + stats.evictable_pages == stats.total_pages
        assert stats.pinned_pages == 0
        assert stats.leases == 0

    def _append(self, name: str) -> None:
        user = self.users[name]
        start = int(user.timestamps[-1]) if len(user) else 1_700_000_000
        items, times, actions = events(int(self.rng.integers(0, 60)), int(self.rng.integers(1 << 30)), start)
        before = self.engine.stats().tokens_computed
        self.users[name], served = self.engine.append(user, items, times, actions)
        assert self.engine.stats().tokens_computed - before == served.tokens_computed
        window = min(len(self.users[name]), self.config.max_history)
        assert served.tokens_cached + served.tokens_computed <= self.config.prefix_tokens(window)

    def _prefetch(self, name: str) -> None:
        if self.rng.integers(2):
            self.engine.prefetch(self.users[name])
            return
        for _ in range(int(self.rng.integers(1, 5))):
            step = self.engine.prefetch_chunk(self.users[name], int(self.rng.integers(1, 80)))
            assert step.tokens_computed or not step.tokens_left

    def _request(self, name: str) -> RankRequest:
        user = self.users[name]
        last = int(user.timestamps[-1]) if len(user) else 1_700_000_000
        candidates = self.rng.integers(-3, 50, int(self.rng.integers(0, 12)))
        return RankRequest(user, candidates, last + int(self.rng.integers(0, 5000)))

    def _check(self, request: RankRequest, result: object) -> None:
        assert isinstance(result, RankResult)
        want = dense_logits(self.engine, request)
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        assert float(np.abs(result.logits - want).max(initial=0)) <= 1e-5 * scale
        self.checked += 1

    def _rank(self, name: str) -> None:
        request = self._request(name)
        self._check(request, self.engine.rank(request))

    def _batch(self, name: str) -> None:
        names = [name, *self.rng.choice(NAMES, int(self.rng.integers(1, 6)))]
        requests = [self._request(str(n)) for n in names]
        for request, result in zip(requests, self.engine.rank_batch(requests), strict=True):
            self._check(request, result)

    def _columns(self, name: str) -> list[np.ndarray]:
        user = self.users[name]
        return [user.items.copy(), user.timestamps.copy(), user.actions.copy()]

    def _edit(self, name: str) -> None:
        items, times, actions = self._columns(name)
        if len(items):
            at = int(self.rng.integers(len(items)))
            items[at] += 1
            self.users[name] = self._user(name, items, times, actions)
        self._rank(name)

    def _shorten(self, name: str) -> None:
        columns = self._columns(name)
        keep = int(self.rng.integers(len(columns[0]) + 1))
        head = bool(self.rng.integers(2))
        part = [c[:keep] if head else c[len(c) - keep :] for c in columns]
        self.users[name] = self._user(name, part[0], part[1], part[2])
        self._rank(name)

    def _forget(self, name: str) -> None:
        self.engine.forget("default", name)
        request = self._request(name)
        result = self.engine.rank(request)
        assert result.served.tokens_cached == 0
        self._check(request, result)

    def _bad(self, name: str) -> None:
        bad = RankRequest(self.users[name], np.zeros(20_000, np.int64))
        good = self._request(name)
        answers = self.engine.rank_batch([bad, good])
        assert isinstance(answers[0], RequestError)
        self._check(good, answers[1])


def live(seed: int, steps: int, config: AnyConfig = CONFIG) -> Life:
    life = Life(seed, config)
    for _ in range(steps):
        life.step()
    for name in NAMES:
        life.engine.forget("default", name)
    stats = life.engine.cache_stats()
    assert stats.free_pages == stats.total_pages
    return life


@pytest.mark.parametrize("seed", range(2))
def test_scores_never_depend_on_the_past(seed: int) -> None:
    life = live(seed, 150)
    assert life.checked > 60
    assert life.engine.stats().tokens_cached > 1000


@pytest.mark.parametrize("family", KEPT)
def test_scores_of_every_family_never_depend_on_the_past(family: str) -> None:
    life = live(7, 130, KEPT[family])
    assert life.checked > 50
    assert life.engine.stats().tokens_cached > 1000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_scores_never_depend_on_a_long_past(seed: int) -> None:
    life = live(seed, 1000)
    assert life.engine.cache_stats().evictions > 5  # the pool was under pressure


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 202))
@pytest.mark.parametrize("family", KEPT)
def test_scores_of_every_family_never_depend_on_a_long_past(family: str, seed: int) -> None:
    life = live(seed, 1000, KEPT[family])
    assert life.engine.cache_stats().evictions > 10
