"""The engine's promises for every family: the same scores on every path, and exact token counts."""

from __future__ import annotations

import numpy as np
import pytest
from engine_checks import CANDIDATES, asked, close, counts, ranked_right, user
from engine_models import FAMILIES, KEPT, RESEARCH, dense_logits, events, make_engine, profile
from msgspec.structs import replace

from relaygr.core.errors import RelayError
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import Path, RankRequest, RankResult

CHANGES = ("item", "action", "time", "delete", "insert")


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
