"""The engine's promises: the same scores on every path, exact token counts, errors that stay local."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from engine_models import CONFIG, dense_logits, events, history, make_engine

from relaygr.core.errors import RelayError, RequestError
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import Path, RankRequest, RankResult
from relaygr.models.window import PAGE_EVENTS

ITEMS = np.arange(12)


def request(user: UserHistory, candidates: object = ITEMS, later_s: int = 90) -> RankRequest:
    last = int(user.timestamps[-1]) if len(user) else 1_700_000_000
    return RankRequest(user, np.asarray(candidates), last + later_s)


def close(a: np.ndarray, b: np.ndarray, bound: float = 1e-5) -> bool:
    return a.shape == b.shape and bool(
        np.all(np.abs(a - b) <= bound * max(1.0, float(np.abs(b).max(initial=0))))
    )


@pytest.fixture
def engine() -> Engine:
    return make_engine()


@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 63, 64, 65, 159, 160])
def test_full_hit_and_dense_agree(engine: Engine, count: int) -> None:
    user = history("u", count, seed=count)
    first = engine.rank(request(user))
    second = engine.rank(request(user))
    assert first.served.path is Path.FULL
    assert (first.served.tokens_cached, first.served.tokens_computed) == (0, count)
    assert second.served.path is (Path.HIT if count else Path.FULL)
    assert (second.served.tokens_cached, second.served.tokens_computed) == (count, 0)
    want = dense_logits(engine, request(user))
    assert close(first.logits, want)
    assert close(second.logits, want)


@pytest.mark.parametrize("pieces", [(0, 1, 1, 30, 1), (5, 16, 43), (31, 1, 32, 1), (100, 60)])
def test_append_computes_exactly_the_new_tokens(engine: Engine, pieces: tuple[int, ...]) -> None:
    """H4."""
    items, times, actions = events(sum(pieces), seed=1)
    user = UserHistory("u", [], [])
    done = 0
    for k in pieces:
        before = engine.stats().tokens_computed
        piece = slice(done, done + k)
        user, served = engine.append(user, items[piece], times[piece], actions[piece])
        assert (served.tokens_cached, served.tokens_computed) == (done, k)
        assert engine.stats().tokens_computed - before == k
        done += k
    result = engine.rank(request(user))
    assert (result.served.path, result.served.tokens_computed) == (Path.HIT, 0)
    assert close(result.logits, dense_logits(engine, request(user)))


def test_rank_resumes_a_shorter_prefix(engine: Engine) -> None:
    items, times, actions = events(90, seed=2)
    engine.prefetch(UserHistory("u", items[:50], times[:50], actions[:50]))
    whole = UserHistory("u", items, times, actions)
    result = engine.rank(request(whole))
    assert (result.served.path, result.served.tokens_cached, result.served.tokens_computed) == (
        Path.RESUMED,
        50,
        40,
    )
    assert close(result.logits, dense_logits(engine, request(whole)))


def test_a_shorter_request_uses_the_prefix_and_keeps_the_longer_entry(engine: Engine) -> None:
    items, times, actions = events(90, seed=3)
    whole = UserHistory("u", items, times, actions)
    engine.prefetch(whole)
    for n in (1, 31, 32, 50, 89):
        part = UserHistory("u", items[:n], times[:n], actions[:n])
        result = engine.rank(request(part))
        assert (result.served.path, result.served.tokens_cached) == (Path.HIT, n)
        assert close(result.logits, dense_logits(engine, request(part)))
    assert engine.rank(request(whole)).served.path is Path.HIT


@pytest.mark.parametrize("at", [0, 1, 31, 32, 40, 89])
@pytest.mark.parametrize("change", ["edit", "delete", "insert", "action", "time"])
def test_a_changed_event_is_never_served_stale(engine: Engine, at: int, change: str) -> None:
    items, times, actions = (c.copy() for c in events(90, seed=4))
    engine.prefetch(UserHistory("u", items, times, actions))
    if change == "edit":
        items[at] += 1000
    elif change == "action":
        actions[at] ^= 2
    elif change == "time":
        times[at:] += 7
    elif change == "delete":
        items, times, actions = (np.delete(c, at) for c in (items, times, actions))
    else:
        items = np.insert(items, at, 999)
        times, actions = np.insert(times, at, times[at]), np.insert(actions, at, 1)
    changed = UserHistory("u", items, times, actions)
    result = engine.rank(request(changed))
    assert result.served.tokens_cached <= at
    assert close(result.logits, dense_logits(engine, request(changed)))


def test_profile_offset_tenant_and_weights_are_part_of_the_key() -> None:
    config = msgspec.structs.replace(CONFIG, contextual=("country", "device"))
    engine = make_engine(config)
    items, times, actions = events(70, seed=5)
    variants = [
        UserHistory("u", items, times, actions, contextual=(1, 2)),
        UserHistory("u", items, times, actions, contextual=(1, 3)),
        UserHistory("u", items, times, actions, contextual=(1, 2), utc_offset_s=3600),
        UserHistory("u", items, times, actions, contextual=(1, 2), tenant_name="other"),
        UserHistory("v", items, times, actions, contextual=(1, 2)),
    ]
    for variant in variants:
        assert engine.rank(request(variant)).served.tokens_cached <= 1  # at most an equal first slot
        assert close(engine.rank(request(variant)).logits, dense_logits(engine, request(variant)))
    assert make_engine(config, seed=1).rank(request(variants[0])).served.path is Path.FULL


@pytest.mark.parametrize("microbatch", [1, 7, 64])
def test_micro_batches_change_nothing(microbatch: int) -> None:
    engine = make_engine(microbatch=microbatch)
    user = history("u", 77, seed=6)
    many = request(user, np.arange(130) % 50)
    for _ in range(2):
        result = engine.rank(many)
        assert close(result.logits, dense_logits(engine, many))
    duplicates = result.logits[:50], result.logits[50:100]
    assert close(*duplicates)


def test_a_batch_of_strangers_changes_nothing(engine: Engine) -> None:
    users = [history(f"u{i}", n, seed=i) for i, n in enumerate((0, 1, 33, 160, 64, 5))]
    alone = [make_engine().rank(request(user)).logits for user in users]
    engine.prefetch_batch(users[2:4])
    batch = [request(user) for user in users] + [request(users[2]), request(users[2], [])]
    for _ in range(2):
        answers = engine.rank_batch(batch)
        for answer, want in zip(answers, [*alone, alone[2], alone[2][:0]], strict=True):
            assert isinstance(answer, RankResult)
            assert close(answer.logits, want)


def test_bitwise_mode_is_bit_exact() -> None:
    """H2: with fixed row tiles a score's bits depend on nothing but model, history, time and item."""
    config = msgspec.structs.replace(CONFIG, max_seq_len=400, position_buckets=400)
    items, times, actions = events(300, seed=7)
    user = UserHistory("u", items, times, actions)
    candidates = np.arange(150)
    want = make_engine(config, bitwise=True).rank(request(user, candidates)).logits
    engine = make_engine(config, bitwise=True, microbatch=9)
    part = UserHistory("u", items[:130], times[:130], actions[:130])
    engine.prefetch(part)
    part, _ = engine.append(part, items[130:131], times[130:131], actions[130:131])
    part, _ = engine.append(part, items[131:], times[131:], actions[131:])
    strangers = [request(history(f"s{i}", 50 + i, seed=i), np.arange(i)) for i in range(3)]
    answers = engine.rank_batch([strangers[0], request(part, candidates), *strangers[1:]])
    assert isinstance(answers[1], RankResult)
    assert answers[1].served.path is Path.HIT
    assert np.array_equal(answers[1].logits, want)
    assert np.array_equal(engine.rank(request(part, candidates[40:41])).logits, want[40:41])


def test_bf16_paths_agree_within_the_bound() -> None:
    engine = make_engine(dtype="bf16")
    items, times, actions = events(150, seed=8)
    user = UserHistory("u", items[:99], times[:99], actions[:99])
    engine.prefetch(user)
    user, _ = engine.append(user, items[99:], times[99:], actions[99:])
    hit = engine.rank(request(user))
    fresh = make_engine(dtype="bf16").rank(request(user))
    assert (hit.served.path, fresh.served.path) == (Path.HIT, Path.FULL)
    assert close(hit.logits, fresh.logits, 2e-2)
    assert close(hit.logits, dense_logits(make_engine(), request(user)), 6e-2)


def test_long_histories_are_anchored() -> None:
    engine = make_engine(anchor_stride=0.25)
    items, times, actions = events(400, seed=9)
    full = 0
    for n in range(150, 400, 10):
        user = UserHistory("u", items[:n], times[:n], actions[:n])
        result = engine.rank(request(user))
        assert close(result.logits, dense_logits(engine, request(user)))
        total = result.served.tokens_cached + result.served.tokens_computed
        assert total <= CONFIG.max_history
        full += result.served.path is Path.FULL
        # A store that dropped old events gives the same window, hence the same scores.
        dropped = max(n - 160, 0)
        shorter = UserHistory(
            "u", items[dropped:n], times[dropped:n], actions[dropped:n], first_sequence=dropped
        )
        again = engine.rank(request(shorter))
        assert again.served.path is Path.HIT
        assert close(again.logits, result.logits)
    stride = -(-40 // PAGE_EVENTS) * PAGE_EVENTS  # a quarter row, rounded up to whole pages
    assert full == 1 + -(-(390 - 160) // stride)  # one rebuild a stride


def test_a_model_that_rewrites_the_past_is_never_reused() -> None:
    config = msgspec.structs.replace(CONFIG, window=20, full_tail=4)
    engine = make_engine(config, microbatch=5)
    user = history("u", 70, seed=10)
    prefetched = engine.prefetch(user)
    assert not prefetched.resident
    assert "request" in prefetched.uncached_reason
    result = engine.rank(request(user))
    assert (result.served.path, result.served.tokens_computed) == (Path.FULL, 70)
    assert close(result.logits, dense_logits(engine, request(user)))
    assert engine.cache_stats().free_pages == engine.cache_stats().total_pages


def test_a_user_larger_than_the_pool_is_ranked_without_it() -> None:
    config = msgspec.structs.replace(CONFIG, max_seq_len=4200, position_buckets=4200)
    engine = make_engine(config)  # 128 pages hold 4,096 tokens
    user = history("u", 4100, seed=11)
    for _ in range(2):
        result = engine.rank(request(user))
        assert result.served.path is Path.FULL
        assert result.served.uncached_reason == "too_large"
        assert close(result.logits, dense_logits(engine, request(user)))
    assert engine.cache_stats().free_pages == 128


def test_the_least_recently_used_user_leaves_first(engine: Engine) -> None:
    users = [history(f"u{i}", 160, seed=i) for i in range(26)]  # 5 pages each; 25 users fit 128 pages
    for user in users[:25]:
        engine.prefetch(user)
    engine.rank(request(users[0]))
    engine.prefetch(users[25])
    assert engine.rank(request(users[0])).served.path is Path.HIT
    assert engine.rank(request(users[1])).served.path is Path.FULL
    stats = engine.cache_stats()
    assert stats.free_pages + stats.pinned_pages + stats.evictable_pages == stats.total_pages
    assert stats.pinned_pages == 0


def test_forget_drops_one_user_of_one_tenant(engine: Engine) -> None:
    mine, other = history("u", 40, seed=1), history("u", 40, seed=1, tenant_name="t2")
    engine.prefetch_batch([mine, history("v", 40, seed=2)])
    engine.prefetch(other)
    assert engine.forget("default", "u") == 1
    assert engine.forget("default", "u") == 0
    assert engine.rank(request(other)).served.path is Path.HIT
    assert engine.rank(request(mine)).served.path is Path.FULL


def test_one_bad_request_never_fails_its_batch(engine: Engine) -> None:
    good = history("u", 20, seed=1)
    answers = engine.rank_batch(
        [
            request(good),
            request(good, np.zeros(16385, np.int64)),
            RankRequest(history("v", 5, 1, contextual=(1,)), [1], 1_900_000_000),
            RankRequest(UserHistory("w", [1], [5], [64]), [1], 9),
            request(good),
        ]
    )
    assert [type(a) for a in answers] == [RankResult, RequestError, RequestError, RequestError, RankResult]
    texts = [str(a) for a in answers if isinstance(a, RelayError)]
    assert "16385" in texts[0]
    assert "16384" in texts[0]
    assert "contextual" in texts[1]
    assert "64" in texts[2]
    assert engine.stats().errors == 3


def test_not_finite_scores_are_an_error_and_leave_nothing() -> None:
    engine = make_engine()
    engine.model.tokens.item.table.weight[:] = float("inf")
    answer = engine.rank_batch([request(history("u", 20, seed=1))])[0]
    assert isinstance(answer, RelayError)
    assert "not finite" in str(answer)
    assert engine.cache_stats().free_pages == engine.cache_stats().total_pages


@pytest.mark.parametrize(
    ("field", "build"),
    [
        ("user", lambda: UserHistory("", [], [])),
        ("user", lambda: UserHistory("a\x00b", [], [])),
        ("user", lambda: UserHistory("é" * 129, [], [])),
        ("user", lambda: UserHistory("\ud800", [], [])),
        ("tenant", lambda: UserHistory("u", [], [], tenant_name="")),
        ("items", lambda: UserHistory("u", [1.5], [1])),
        ("items", lambda: UserHistory("u", [[1]], [1])),
        ("items", lambda: UserHistory("u", [2**64], [1])),
        ("items", lambda: UserHistory("u", np.array([2**63], np.uint64), [1])),
        ("items", lambda: UserHistory("u", ["1"], [1])),
        ("timestamps", lambda: UserHistory("u", [1], [])),
        ("timestamps", lambda: UserHistory("u", [1, 2], [2, 1])),
        ("timestamps", lambda: UserHistory("u", [1], [-1])),
        ("timestamps", lambda: UserHistory("u", [1], [1_700_000_000_000])),
        ("actions", lambda: UserHistory("u", [1], [1], [-1])),
        ("actions", lambda: UserHistory("u", [1], [1], [1, 1])),
        ("utc_offset_s", lambda: UserHistory("u", [1], [1], utc_offset_s=100_000)),
        ("first_sequence", lambda: UserHistory("u", [1], [1], first_sequence=-1)),
        ("query_time", lambda: RankRequest(UserHistory("u", [1], [5]), [1], 4)),
        ("candidates", lambda: RankRequest(UserHistory("u", [1], [5]), [0.5], 9)),
        ("query_time", lambda: RankRequest(UserHistory("u", [1], [5]), [1], "17")),
        ("query_time", lambda: RankRequest(UserHistory("u", [1], [5]), [1], 9.5)),
        ("utc_offset_s", lambda: UserHistory("u", [1], [1], utc_offset_s=0.9)),
        ("utc_offset_s", lambda: UserHistory("u", [1], [1], utc_offset_s=None)),
        ("first_sequence", lambda: UserHistory("u", [1], [1], first_sequence=1.5)),
        ("items", lambda: UserHistory("u", [[1], [1, 2]], [1, 2])),
        ("items", lambda: UserHistory("u", np.ma.masked_array([1, 2], [0, 1]), [1, 2])),
        ("timestamps", lambda: UserHistory("u", [1], [5]).append([2], [4])),
    ],
)
def test_bad_input_names_its_field(field: str, build: object) -> None:
    with pytest.raises(RequestError) as raised:
        build()  # type: ignore[operator]
    assert raised.value.field == field


def test_successors_of_one_history_do_not_share_digests() -> None:
    engine = make_engine()
    items, times, actions = events(40, seed=12)
    base = UserHistory("u", items, times, actions)
    engine.prefetch(base)
    left = base.append([7], [int(times[-1])])
    right = base.append([8], [int(times[-1])])
    for user in (left, right, base, left):
        assert close(engine.rank(request(user)).logits, dense_logits(engine, request(user)))


def test_histories_are_read_only_values() -> None:
    items = np.array([1, 2, 3])
    user = UserHistory("u", items, [1, 2, 3])
    items[0] = 9
    assert user.items[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        user.items[0] = 9


def test_a_regression_is_no_probability() -> None:
    config = msgspec.structs.replace(CONFIG, regressions=("like",))
    result = make_engine(config).rank(RankRequest(history("u", 9, 1), [1, 2]))
    assert np.allclose(result.probabilities[:, 0], 1 / (1 + np.exp(-result.logits[:, 0])))
    assert np.array_equal(result.probabilities[:, 1], result.logits[:, 1])
