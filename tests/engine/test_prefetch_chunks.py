"""A prefetch in steps leaves exactly what one prefetch leaves, and can be overtaken at any step."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from engine_models import CONFIG, dense_logits, history, make_engine

from relaygr.core.errors import RequestError
from relaygr.engine.requests import Path, RankRequest
from relaygr.models.hstu import HstuConfig
from relaygr.models.presets import AnyConfig
from relaygr.models.switches import META_RESEARCH, META_STU, NVIDIA, Table
from relaygr.models.transformer import TransformerConfig

SIZES = {
    name: getattr(CONFIG, name) for name in ("hidden_size", "num_layers", "num_heads", "qk_dim", "v_dim")
}
TABLES = {
    **SIZES,
    "max_seq_len": 320,
    "scaling_seqlen": 32,
    "position_buckets": 160,
    "embedding_dim": 16,
    "items": Table(name="item", rows=41, unknown="hash"),
}
FAMILIES: dict[str, AnyConfig] = {
    "relay": CONFIG,
    "relay-slots": msgspec.structs.replace(CONFIG, contextual=("a", "b", "c")),
    "transformer": TransformerConfig(
        **SIZES,
        max_seq_len=160,
        mlp_size=24,
        item_rows=257,
        embedding_dim=8,
        action_bits=("a", "b"),
        tasks=("a",),
    ),
    "nvidia": HstuConfig(
        **TABLES,
        variant="nvidia",
        layer=NVIDIA,
        postprocess="l2",
        action_mode="interleave",
        actions=Table(name="action", rows=8),
        contextual=("a",),
        slot_tables=(Table(name="a", rows=9),),
    ),
    "research": HstuConfig(
        **TABLES, variant="meta_research", layer=META_RESEARCH, postprocess="l2", action_mode="none"
    ),
}


@pytest.mark.parametrize("limit", [1, 40, 64, 1000])
@pytest.mark.parametrize("name", FAMILIES)
def test_steps_equal_one_prefetch(name: str, limit: int) -> None:
    config = FAMILIES[name]
    engine = make_engine(config)
    user = history("u", 150, 3, contextual=range(len(config.contextual)))
    tokens = config.prefix_tokens(150)
    left, cached, steps = tokens, 0, 0
    while left:
        step = engine.prefetch_chunk(user, limit)
        assert step.tokens_cached == cached
        assert 0 < step.tokens_computed <= max(limit, engine.config.page_tokens)
        assert step.tokens_left == tokens - cached - step.tokens_computed
        assert step.resident
        cached, left, steps = cached + step.tokens_computed, step.tokens_left, steps + 1
    assert cached == tokens
    assert steps >= tokens // max(limit, engine.config.page_tokens)
    request = RankRequest(user, [1, 2, 3, 5])
    result = engine.rank(request)
    assert result.served.path is Path.HIT
    assert np.abs(result.logits - dense_logits(engine, request)).max() <= 1e-5
    assert engine.prefetch_chunk(user, limit).tokens_computed == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_a_rank_call_goes_on_from_any_step(name: str) -> None:
    config = FAMILIES[name]
    engine = make_engine(config)
    user = history("u", 150, 3, contextual=range(len(config.contextual)))
    done = sum(engine.prefetch_chunk(user, 40).tokens_computed for _ in range(2))
    request = RankRequest(user, [1, 2, 3, 5])
    result = engine.rank(request)
    assert (result.served.path, result.served.tokens_cached) == (Path.RESUMED, done)
    assert np.abs(result.logits - dense_logits(engine, request)).max() <= 1e-5
    late = engine.prefetch_chunk(user, 40)
    assert (late.tokens_computed, late.tokens_left) == (0, 0)


def test_a_window_behind_the_anchor_is_stepped_through() -> None:
    engine = make_engine()
    user = history("u", 400, 3)  # the model reads 160
    total = 0
    while True:
        step = engine.prefetch_chunk(user, 32)
        total += step.tokens_computed
        if not step.tokens_left:
            break
    request = RankRequest(user, [1, 2])
    result = engine.rank(request)
    assert (result.served.path, result.served.tokens_cached) == (Path.HIT, total)
    assert np.abs(result.logits - dense_logits(engine, request)).max() <= 1e-5


def test_models_that_keep_nothing_have_nothing_to_step_through() -> None:
    config = HstuConfig(
        **TABLES,
        variant="meta_stu",
        layer=META_STU,
        position="backward_time",
        time_buckets=8,
        action_weights=(1,),
    )
    step = make_engine(config).prefetch_chunk(history("u", 150, 3), 32)
    assert (step.tokens_computed, step.tokens_left, step.resident) == (0, 0, False)


def test_the_limit_is_checked() -> None:
    with pytest.raises(RequestError, match="limit_tokens"):
        make_engine().prefetch_chunk(history("u", 10, 3), 0)
