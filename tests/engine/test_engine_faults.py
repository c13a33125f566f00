"""What goes wrong in the middle: nothing leaks, nothing stale is served, the next request is right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from engine_models import dense_logits, events, history, make_engine

from relaygr.cache.digests import DigestChain
from relaygr.core.errors import RelayError, RequestError
from relaygr.engine import Engine, RankRequest, RankResult, UserHistory
from relaygr.memory.pool import PagePool
from relaygr.models.layers.hstu import HstuLayer

CANDIDATES = np.arange(9)


def ranked_right(engine: Engine, user: UserHistory) -> RankResult:
    request = RankRequest(user, CANDIDATES)
    result, want = engine.rank(request), dense_logits(engine, request)
    assert float(np.abs(result.logits - want).max()) <= 1e-5 * max(1.0, float(np.abs(want).max()))
    return result


def at_rest(engine: Engine) -> bool:
    stats = engine.cache_stats()
    return stats.leases == 0 and stats.pinned_pages == 0


def fail_on(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, call: int, after: bool = False) -> None:
    """Raise KeyboardInterrupt at the `call`-th call of a method, before or after its work."""
    method: Callable[..., object] = getattr(owner, name)
    calls = 0

    def wrapped(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise KeyboardInterrupt
        out = method(*args, **kwargs)
        if calls == call:
            raise KeyboardInterrupt
        return out

    monkeypatch.setattr(owner, name, wrapped)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (HstuLayer, "forward"),
        (PagePool, "zero"),
        (PagePool, "copy"),
        (PagePool, "write"),
        (DigestChain, "extend"),
    ],
)
def test_an_interrupt_anywhere_leaks_nothing(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, call: int, after: bool
) -> None:
    engine = make_engine()
    items, times, actions = events(90, seed=1)
    engine.prefetch(UserHistory("u", items[:50], times[:50], actions[:50]))
    changed = items.copy()
    changed[40] += 1  # inside a page: the write starts with a copy
    user = UserHistory("u", changed[:60], times[:60], actions[:60])
    other = history("v", 40, seed=2)
    with monkeypatch.context() as patch:
        fail_on(patch, owner, name, call, after)
        for step in (user, user, other):
            try:
                engine.prefetch_batch([step, other] if step is user else [step])
                step.append([1], [int(times[-1]) * 2])
            except KeyboardInterrupt:
                assert at_rest(engine)
    for one in (user, other, user.append(changed[60:], times[60:], actions[60:])):
        ranked_right(engine, one)
        assert ranked_right(engine, one).served.tokens_computed == 0
    assert at_rest(engine)


def test_an_append_while_the_digests_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread appends to a history while it is being hashed: the two must not share a chain."""
    engine = make_engine()
    first = history("u", 13, seed=1)
    engine.prefetch(first)
    user = first.append([7] * 20, [1_900_000_000] * 20)
    extend, children = DigestChain.extend, []

    def extend_and_append(chain: DigestChain, records: bytes) -> None:
        if not children:
            children.append(user.append([8] * 3, [1_900_001_000] * 3))
        extend(chain, records)

    with monkeypatch.context() as patch:
        patch.setattr(DigestChain, "extend", extend_and_append)
        engine.prefetch(user)
    ranked_right(engine, children[0])
    ranked_right(engine, user.append([9] * 4, [1_900_002_000] * 4))
    ranked_right(engine, children[0])


def test_what_gives_bad_scores_is_not_kept() -> None:
    engine = make_engine()
    user = history("u", 40, seed=1)
    engine.model.tokens.item.table.weight.mul_(1e30)
    assert engine.prefetch(user).resident
    answer = engine.rank_batch([RankRequest(user, CANDIDATES)])[0]
    assert isinstance(answer, RelayError)
    assert "not finite" in str(answer)
    assert engine.cache_stats().entries == 0
    assert at_rest(engine)


def test_a_batch_with_something_else_in_it() -> None:
    engine = make_engine()
    user = history("u", 10, seed=1)
    answers = engine.rank_batch([RankRequest(user, CANDIDATES), None])  # type: ignore[list-item]
    assert isinstance(answers[0], RankResult)
    assert isinstance(answers[1], RequestError)


def test_scores_do_not_depend_on_the_page_size() -> None:
    user = history("u", 300, seed=3)  # longer than the model's 160 tokens
    request = RankRequest(user, CANDIDATES)
    results = [make_engine(page_tokens=size, pages=1024).rank(request) for size in (8, 32, 256)]
    assert len({r.served.tokens_computed for r in results}) == 1
    for result in results[1:]:
        assert float(np.abs(result.logits - results[0].logits).max()) <= 1e-5
