"""`plan model`: FLOPs and K/V bytes of a ranker, before anything is run."""

from __future__ import annotations

import msgspec

from relaygr.bench.cell import APPENDED
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import ConfigError
from relaygr.kernels.select import DTYPES
from relaygr.memory.layout import KvLayout
from relaygr.models.cost import cost
from relaygr.models.presets import AnyConfig

PLAN_DTYPES = ("fp32", "bf16")


class ModelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Multiply-add = 2 FLOP, layers only.

    Attributes:
        flops_per_token_and_layer: projections and output.
        attention_flops_per_pair_and_layer: one token looking at one key.
        overtakes_token: keys from which one token's attention costs more than its matrices.
        overtakes_prefill: history length from which attention is the larger half of a whole prefill.
        full_flops, hit_flops: history and candidates; candidates only.
        append_flops: `appended` events behind the rest of the history.
        saved_share: share of `full_flops` that a cached history saves.
        row_kv_bytes: of `history` tokens; `max_row_kv_bytes` of the longest row the model takes.
        users: rows of `history` tokens that fit the pool, whole pages each.
    """

    history: int
    candidates: int
    appended: int
    dtype: str
    layers: int
    flops_per_token_and_layer: int
    attention_flops_per_pair_and_layer: int
    overtakes_token: float
    overtakes_prefill: float
    prefill_flops: int
    full_flops: int
    hit_flops: int
    append_flops: int
    saved_share: float
    kv_bytes_per_token: int
    row_kv_bytes: int
    max_row_kv_bytes: int
    device_bytes: int
    page_tokens: int
    users: int


def plan_model(config: AnyConfig, history: int, candidates: int, dtype: str, device_bytes: int) -> ModelPlan:
    """Plan one request shape.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """
    for option, value, low, high in (
        ("--history", history, 1, config.max_seq_len),
        ("--candidates", candidates, 0, config.max_num_candidates),
    ):
        if not low <= value <= high:
            raise ConfigError(option, f"{value} is outside [{low}, {high}]")
    if dtype not in PLAN_DTYPES:
        raise ConfigError("--dtype", f"{dtype!r} is not one of {', '.join(PLAN_DTYPES)}")
    page_tokens = EngineConfig().page_tokens
    layout = KvLayout(
        config.num_layers, config.num_heads, config.qk_dim, config.v_dim, DTYPES[dtype], page_tokens
    )
    if device_bytes < layout.page_bytes:
        raise ConfigError("--device-bytes", f"{device_bytes} is less than one page, {layout.page_bytes}")
    EngineConfig.LIMITS["device_bytes"].check("--device-bytes", device_bytes)
    price = cost(config, DTYPES[dtype].itemsize)
    prefill, hit = price.prefill_flops(history), price.score_flops(candidates, history)
    appended = min(APPENDED, history)
    return ModelPlan(
        history=history,
        candidates=candidates,
        appended=appended,
        dtype=dtype,
        layers=config.num_layers,
        flops_per_token_and_layer=price.dense_flops_per_token // config.num_layers,
        attention_flops_per_pair_and_layer=price.attention_flops_per_pair // config.num_layers,
        overtakes_token=price.overtakes_at,
        overtakes_prefill=2 * price.overtakes_at,
        prefill_flops=prefill,
        full_flops=prefill + hit,
        hit_flops=hit,
        append_flops=price.prefill_flops(appended, history - appended),
        saved_share=prefill / (prefill + hit),
        kv_bytes_per_token=price.kv_bytes_per_token,
        row_kv_bytes=price.kv_bytes_per_token * history,
        max_row_kv_bytes=price.kv_bytes_per_token * config.max_seq_len,
        device_bytes=device_bytes,
        page_tokens=page_tokens,
        users=device_bytes // layout.page_bytes // layout.pages_for(history),
    )
