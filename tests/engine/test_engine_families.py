"""The engine's promises for every family: the same scores on every path, and exact token counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_models import (
    FAMILIES,
    KEPT,
    NVIDIA_PAIRS,
    REMADE,
    RESEARCH,
    dense_logits,
    events,
    make_engine,
    profile,
)
from msgspec.structs import replace

from relaygr.core.errors import RelayError, RequestError
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import Path, RankRequest, RankResult
from relaygr.models.presets import AnyConfig
from relaygr.models.switches import Table

CANDIDATES = np.arange(1, 12)
CHANGES = ("item", "action", "time", "delete", "insert")


def user(config: AnyConfig, count: int, seed: int, name: str = "u") -> UserHistory:
    items, times, actions = events(count, seed)
    return UserHistory(name, items, times, actions, contextual=profile(config))


def asked(history: UserHistory, candidates: Any = CANDIDATES, later_s: int = 4_000) -> RankRequest:
    last = int(history.timestamps[-1]) if len(history) else 1_700_000_000
    return RankRequest(history, candidates, last + later_s)


def close(a: np.ndarray, b: np.ndarray, bound: float = 1e-5) -> bool:
    return a.shape == b.shape and bool(
        np.all(np.abs(a - b) <= bound * max(1.0, float(np.abs(b).max(initial=0))))
    )


def ranked_right(engine: Engine, request: RankRequest) -> RankResult:
    """The engine's answer, which must be that of a dense pass."""
    result = engine.rank(request)
    assert close(result.logits, dense_logits(engine, request))
    return result


def counts(result: RankResult) -> tuple[Path, int, int]:
    return result.served.path, result.served.tokens_cached, result.served.tokens_computed


@pytest.mark.parametrize("count", [0, 1, 2, 33, 70])
@pytest.mark.parametrize("family", KEPT)
def test_a_hit_reuses_everything(family: str, count: int) -> None:
    config = KEPT[family]
    engine = make_engine(config)
    history = user(config, count, seed=count)
    tokens = config.prefix_tokens(count)
    first, second = (ranked_right(engine, asked(history)) for _ in range(2))
    assert counts(first) == (Path.FULL, 0, tokens)
    assert counts(second) == (Path.HIT if tokens else Path.FULL, tokens, 0)
    provisional = min(config.provisional, count)
    assert [one.served.tokens_provisional for one in (first, second)] == [provisional] * 2
    assert close(first.logits, second.logits)


@pytest.mark.parametrize("pieces", [(0, 1, 1, 30, 1), (5, 16, 43)])
@pytest.mark.parametrize("family", KEPT)
def test_appending_computes_exactly_the_new_events(family: str, pieces: tuple[int, ...]) -> None:
    """H4: k tokens, or 2 k with actions of their own; and once the profile's."""
    config = KEPT[family]
    engine = make_engine(config)
    items, times, actions = events(sum(pieces), seed=1)
    history = UserHistory("u", [], [], contextual=profile(config))
    engine.prefetch(history)
    done = 0
    for k in pieces:
        before = engine.stats()
        piece = slice(done, done + k)
        history, served = engine.append(history, items[piece], times[piece], actions[piece])
        after = engine.stats()
        # The first event of a model with a provisional row has nothing before it to compute.
        new = k * config.tokens_per_event - (config.provisional if k and not done else 0)
        assert served.tokens_computed == new
        assert served.tokens_cached == config.prefix_tokens(done)
        assert after.tokens_computed - before.tokens_computed == new
        assert after.tokens_cached - before.tokens_cached == config.prefix_tokens(done)
        done += k
    result = ranked_right(engine, asked(history))
    assert counts(result) == (Path.HIT, config.prefix_tokens(done), 0)


def test_a_provisional_row_is_computed_anew_and_no_other() -> None:
    """H3: the newest event's row waits for the event after it, which is what the append then computes."""
    engine = make_engine(RESEARCH)
    items, times, actions = events(50, seed=3)
    history = UserHistory("u", items[:40], times[:40], actions[:40])
    engine.prefetch(history)
    soon, late = (ranked_right(engine, asked(history, later_s=seconds)) for seconds in (60, 9_000_000))
    assert [counts(one) for one in (soon, late)] == [(Path.HIT, 39, 0)] * 2
    assert [one.served.tokens_provisional for one in (soon, late)] == [1, 1]
    assert not close(soon.logits, late.logits)  # the row did read the query time
    for done in range(40, 50):
        history, served = engine.append(history, items[done : done + 1], times[done : done + 1])
        assert (served.tokens_cached, served.tokens_computed, served.tokens_provisional) == (done - 1, 1, 0)
        result = ranked_right(engine, asked(history))
        assert counts(result) == (Path.HIT, done, 0)
        assert result.served.tokens_provisional == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_strangers_micro_batches_and_duplicates_change_nothing(family: str) -> None:
    config = FAMILIES[family]
    users = [user(config, n, seed=i, name=f"u{i}") for i, n in enumerate((0, 1, 33, 70, 64, 5))]
    alone = [ranked_right(make_engine(config), asked(one)).logits for one in users]
    for microbatch in (1, 4, 64):
        engine = make_engine(config, microbatch=microbatch)
        engine.prefetch_batch(users[2:4])
        batch = [asked(one) for one in users] + [asked(users[2], CANDIDATES[::-1]), asked(users[2], [])]
        for _ in range(2):
            answers = engine.rank_batch(batch)
            wanted = [*alone, alone[2][::-1], alone[2][:0]]
            for answer, want in zip(answers, wanted, strict=True):
                assert isinstance(answer, RankResult)
                assert close(answer.logits, want)


@pytest.mark.parametrize("family", KEPT)
def test_a_shorter_history_uses_the_prefix(family: str) -> None:
    config = KEPT[family]
    engine = make_engine(config)
    items, times, actions = events(70, seed=3)
    slots = profile(config)
    engine.prefetch(UserHistory("u", items, times, actions, contextual=slots))
    for n in (2, 31, 33, 69):
        part = UserHistory("u", items[:n], times[:n], actions[:n], contextual=slots)
        assert counts(ranked_right(engine, asked(part))) == (Path.HIT, config.prefix_tokens(n), 0)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", KEPT)
def test_reuse_ends_before_the_first_changed_token(family: str, change: str) -> None:
    config = KEPT[family]
    slots, per = profile(config), config.tokens_per_event
    for at in (0, 1, 31, 40, 67):
        engine = make_engine(config)
        items, times, actions = (column.copy() for column in events(70, seed=4))
        engine.prefetch(UserHistory("u", items, times, actions, contextual=slots))
        if change == "item":
            items[at] += 1_000
        elif change == "action":
            actions[at] ^= 2
        elif change == "time":
            times[at:] += 7
        elif change == "delete":
            items, times, actions = (np.delete(column, at) for column in (items, times, actions))
        else:
            items = np.insert(items, at, 999)
            times, actions = np.insert(times, at, times[at]), np.insert(actions, at, 1)
        changed = UserHistory("u", items, times, actions, contextual=slots)
        result = ranked_right(engine, asked(changed))
        cached = result.served.tokens_cached
        before = len(slots) + per * at
        if change == "item":
            assert cached == before
        elif change == "action" and config.provisional:
            assert cached == config.prefix_tokens(70)  # a model that reads no actions
        elif change == "action":
            assert cached == before + per - 1  # an item token of its own does not read the action
        else:
            assert cached <= before
            # A provisional model's row before the change knows the changed time.
            assert cached >= before - per * config.provisional - per


@pytest.mark.parametrize("family", [name for name in KEPT if KEPT[name].contextual])
def test_a_changed_profile_slot_ends_the_reuse(family: str) -> None:
    config = KEPT[family]
    engine = make_engine(config)
    items, times, actions = events(60, seed=5)
    for slots, kept in (([3, 5], 0), ([3, 6], 1), ([4, 5], 0)):
        history = UserHistory("u", items, times, actions, contextual=slots)
        assert ranked_right(engine, asked(history)).served.tokens_cached <= kept


@pytest.mark.parametrize("family", KEPT)
def test_bits_depend_on_nothing_else(family: str) -> None:
    """H2 with fixed row tiles: pieces, strangers, micro-batches and the cache leave every bit alone."""
    config = replace(KEPT[family], max_seq_len=400)
    items, times, actions = events(160, seed=7)
    slots = profile(config)
    whole = UserHistory("u", items, times, actions, contextual=slots)
    candidates = np.arange(1, 141)
    want = make_engine(config, bitwise=True).rank(asked(whole, candidates)).logits
    engine = make_engine(config, bitwise=True, microbatch=9)
    part = UserHistory("u", items[:63], times[:63], actions[:63], contextual=slots)
    while engine.prefetch_chunk(part, 32).tokens_left:
        pass
    for stop in (64, 150, 160):
        new = slice(len(part), stop)
        part, _ = engine.append(part, items[new], times[new], actions[new])
    strangers = [asked(user(config, 50 + i, seed=i, name=f"s{i}"), np.arange(1, 1 + i)) for i in range(3)]
    answer = engine.rank_batch([strangers[0], asked(part, candidates), *strangers[1:]])[1]
    assert isinstance(answer, RankResult)
    assert counts(answer) == (Path.HIT, config.prefix_tokens(160), 0)
    assert np.array_equal(answer.logits, want)
    assert np.array_equal(engine.rank(asked(part, candidates[40:41])).logits, want[40:41])


@pytest.mark.parametrize("family", KEPT)
def test_bf16_paths_agree_within_the_bound(family: str) -> None:
    config = KEPT[family]
    engine = make_engine(config, dtype="bf16")
    items, times, actions = events(70, seed=8)
    history = UserHistory("u", items[:45], times[:45], actions[:45], contextual=profile(config))
    engine.prefetch(history)
    history, _ = engine.append(history, items[45:], times[45:], actions[45:])
    hit = engine.rank(asked(history))
    fresh = make_engine(config, dtype="bf16").rank(asked(history))
    assert (hit.served.path, fresh.served.path) == (Path.HIT, Path.FULL)
    assert close(hit.logits, fresh.logits, 2e-2)
    assert close(hit.logits, dense_logits(make_engine(config), asked(history)), 6e-2)


@pytest.mark.parametrize("family", KEPT)
def test_a_user_larger_than_the_pool_is_ranked_without_it(family: str) -> None:
    config = replace(KEPT[family], qk_dim=128, v_dim=128, max_seq_len=700)
    engine = make_engine(config)  # 1 MiB holds 256 tokens of this width
    history = user(config, 300, seed=11)
    for _ in range(2):
        result = ranked_right(engine, asked(history))
        assert result.served.path is Path.FULL
        assert result.served.uncached_reason == "too_large"
        assert result.served.tokens_computed == config.prefix_tokens(300)
    stats = engine.cache_stats()
    assert stats.free_pages == stats.total_pages


@pytest.mark.parametrize("family", KEPT)
def test_long_histories_are_anchored(family: str) -> None:
    config = replace(KEPT[family], max_seq_len=150)
    engine = make_engine(config, anchor_stride=0.25)
    items, times, actions = events(200, seed=9)
    full = 0
    for n in range(60, 200, 10):
        history = UserHistory("u", items[:n], times[:n], actions[:n], contextual=profile(config))
        result = ranked_right(engine, asked(history))
        served = result.served
        assert served.tokens_cached + served.tokens_computed <= config.prefix_tokens(config.max_history)
        full += served.tokens_cached <= len(config.contextual)
    assert 1 < full < 7  # a few rebuilds, not one a request


@pytest.mark.parametrize("family", REMADE)
def test_a_model_that_rewrites_the_past_is_never_reused(family: str) -> None:
    config = REMADE[family]
    engine = make_engine(config, microbatch=4)
    history = user(config, 70, seed=10)
    prefetched = engine.prefetch(history)
    assert not prefetched.resident
    assert config.cacheable in ("request", "none")
    assert {"request": "request", "none": "pass"}[config.cacheable] in prefetched.uncached_reason
    for later_s in (10, 10, 800_000):
        result = ranked_right(engine, asked(history, later_s=later_s))
        assert counts(result) == (Path.FULL, 0, config.prefix_tokens(70))
    for seed, count in enumerate((0, 1, 39, 40)):
        ranked_right(engine, asked(user(config, count, seed)))
    stats = engine.cache_stats()
    assert stats.free_pages == stats.total_pages
    assert engine.stats().tokens_cached == 0


@pytest.mark.parametrize("family", ["meta-ages-each", "transformer", "meta-stu", "nvidia"])
@pytest.mark.parametrize("microbatch", [2, 64])
def test_one_query_time_a_candidate(family: str, microbatch: int) -> None:
    """Scores equal those of one request a candidate, in request order, whatever the times' order."""
    config = replace(FAMILIES[family], query_times="candidate")
    engine = make_engine(config, microbatch=microbatch)
    history = user(config, 40, seed=12)
    last = int(history.timestamps[-1])
    times = last + np.array([0, 90_000, 0, 3_600, 90_000, 0, 50, 3_600, 0, 0, 7])
    other = user(config, 20, seed=13, name="v")
    batch = [RankRequest(history, CANDIDATES, times), asked(other), RankRequest(other, [], [])]
    for _ in range(2):
        answers = engine.rank_batch(batch)
        for answer, request in zip(answers, batch, strict=True):
            assert isinstance(answer, RankResult)
            assert close(answer.logits, dense_logits(engine, request))
    spread = engine.rank(RankRequest(history, np.full(11, 5), times)).logits
    if family != "nvidia":  # which reads no times
        assert float(np.abs(spread[0] - spread[1]).max()) > 1e-4
    assert close(spread[0], spread[2])


@pytest.mark.parametrize("family", ["nvidia", "meta-stu", "meta-research"])
def test_one_query_time_a_request_is_all_that_other_models_take(family: str) -> None:
    engine = make_engine(KEPT[family])
    history = user(KEPT[family], 5, seed=1)
    times = int(history.timestamps[-1]) + np.arange(len(CANDIDATES))
    answer = engine.rank_batch([RankRequest(history, CANDIDATES, times)])[0]
    assert isinstance(answer, RequestError)
    assert answer.field == "query_time"


def test_unknown_ids_are_rejected_by_name_and_harm_nobody_else() -> None:
    strict = replace(NVIDIA_PAIRS, items=Table(name="film", rows=50))
    engine = make_engine(strict)
    good = user(strict, 20, seed=1)

    def other(**columns: list[int]) -> UserHistory:
        row: dict[str, Any] = {"items": [1, 2], "timestamps": [5, 6], "actions": [1, 1], **columns}
        return UserHistory("v", contextual=row.pop("contextual", [3, 5]), **row)

    bad = [
        (RankRequest(other(items=[1, 50]), [1], 9), ("items", "50", "film", "49")),
        (RankRequest(other(items=[-7, 2]), [1], 9), ("items", "-7", "film", "49")),
        (RankRequest(other(), [1, 2**62], 9), ("candidates", str(2**62), "film", "49")),
        (RankRequest(other(actions=[1, 8]), [1], 9), ("actions", "8", "action", "7")),
        (RankRequest(other(contextual=[3, 9]), [1], 9), ("place", "9", "8")),
    ]
    answers = engine.rank_batch([asked(good), *(request for request, _ in bad), asked(good)])
    for answer, (_, words) in zip(answers[1:-1], bad, strict=True):
        assert isinstance(answer, RequestError)
        for word in words:
            assert word in f"{answer.field} {answer}"
    for answer in (answers[0], answers[-1]):
        assert isinstance(answer, RankResult)
        assert close(answer.logits, dense_logits(engine, asked(good)))
        assert answer.served.unknown_ids == 0
    assert engine.stats().errors == len(bad)


@pytest.mark.parametrize("policy", ["default", "hash", "unknown_row"])
def test_unknown_ids_of_a_lenient_table_are_counted(policy: str) -> None:
    film = Table(name="film", rows=50, unknown=policy, unknown_row=7)
    engine = make_engine(replace(NVIDIA_PAIRS, items=film))
    history = UserHistory("u", [1, 50, -7, 3, 2**62], [1, 2, 3, 4, 5], contextual=[3, 5])
    for _ in range(2):
        result = ranked_right(engine, asked(history, [1, 49, 50, 2**62, 51]))
        assert result.served.unknown_ids == 6
    if policy == "default":
        assert close(result.logits[2], result.logits[4])
    known = ranked_right(engine, asked(user(NVIDIA_PAIRS, 9, seed=1), [1, 2]))
    assert known.served.unknown_ids == 0


def test_padding_in_a_research_history_is_an_unknown_id() -> None:
    engine = make_engine(RESEARCH)
    history = UserHistory("u", [4, 0, 9, 0], [1, 2, 3, 4])
    result = ranked_right(engine, asked(history, [0, 4]))
    assert result.served.unknown_ids == 3
    assert float(np.abs(result.logits[0]).max()) == 0.0  # the zero vector has no direction


@pytest.mark.parametrize("family", KEPT)
def test_one_bad_request_never_fails_its_batch(family: str) -> None:
    config = KEPT[family]
    engine = make_engine(config)
    good = asked(user(config, 20, seed=1))
    stranger = UserHistory("v", [1], [5], contextual=[1, 2, 3])
    answers = engine.rank_batch(
        [good, RankRequest(stranger, [1], 9), asked(good.history, np.ones(16_385, np.int64)), good]
    )
    assert [isinstance(answer, RelayError) for answer in answers] == [False, True, True, False]
    assert "contextual" in str(answers[1])
    assert "16385" in str(answers[2])
    for answer in (answers[0], answers[3]):
        assert isinstance(answer, RankResult)
        assert close(answer.logits, dense_logits(engine, good))
