"""Small engines for tests, and the slow way to score: one dense pass without any cache."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from relaygr.config.settings import EngineConfig
from relaygr.core.clock import ManualClock
from relaygr.core.ids import Fingerprint
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import RankRequest
from relaygr.kernels.reference import ReferenceKernel
from relaygr.kernels.select import choose
from relaygr.models.hstu import HstuConfig
from relaygr.models.presets import AnyConfig
from relaygr.models.ranker import Ranker, RowInput
from relaygr.models.switches import META_RESEARCH, META_STU, NVIDIA, Table
from relaygr.models.transformer import TransformerConfig
from relaygr.models.window import anchor, anchor_stride

_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "qk_dim": 8,
    "v_dim": 8,
    "max_seq_len": 160,
    "action_bits": ("engage", "like"),
    "tasks": ("engage", "like"),
}
CONFIG = HstuConfig(**_SIZES, scaling_seqlen=32, position_buckets=160, item_rows=257, embedding_dim=8)
_ITEMS = Table(name="item", rows=1100, unknown="hash")
_PLACE = Table(name="place", rows=9)
_SLOTS: dict[str, Any] = {"contextual": ("country", "city"), "slot_tables": (_PLACE, _PLACE)}
_PUBLISHED: dict[str, Any] = {**_SIZES, "scaling_seqlen": 32, "position_buckets": 160, "items": _ITEMS}
META = HstuConfig(
    **_PUBLISHED,
    **_SLOTS,
    variant="meta_stu",
    layer=META_STU,
    embedding_dim=8,
    stack_size=32,
    head_size=32,
    action_weights=(1, 2),
    postprocess="time_norm",
)
NVIDIA_PAIRS = HstuConfig(
    **_PUBLISHED,
    **_SLOTS,
    variant="nvidia",
    layer=NVIDIA,
    embedding_dim=16,
    norm_eps=1e-5,
    action_mode="interleave",
    actions=Table(name="action", rows=8),
    postprocess="l2",
    head_sizes=(32,),
)
RESEARCH = HstuConfig(
    **{
        **_PUBLISHED,
        "tasks": ("engage",),
        "items": Table(name="item", rows=1100, first=1, unknown="default"),
    },
    variant="meta_research",
    layer=META_RESEARCH,
    embedding_dim=16,
    action_mode="none",
    postprocess="l2",
)
TRANSFORMER = TransformerConfig(**_SIZES, mlp_size=32, item_rows=257, embedding_dim=8)
# Models whose prefixes are kept, and models whose K/V hold for one request or one pass.
KEPT: dict[str, AnyConfig] = {
    "transformer": TRANSFORMER,
    "transformer-window": replace(TRANSFORMER, window=20, contextual=("country", "city")),
    "nvidia": NVIDIA_PAIRS,
    "nvidia-items": replace(NVIDIA_PAIRS, action_mode="none", actions=None, window=25),
    "meta-stu": META,
    "meta-research": RESEARCH,
}
_AGES = replace(META, position="backward_time", time_buckets=60)
REMADE: dict[str, AnyConfig] = {
    "meta-ages": _AGES,
    "meta-ages-each": replace(_AGES, query_times="candidate"),
    "meta-min-history": replace(META, slot_min_history=(0, 40)),
    "nvidia-two-way": replace(NVIDIA_PAIRS, contextual_two_way=True),
    "relay-tail": replace(CONFIG, window=20, full_tail=4),
}
FAMILIES = KEPT | REMADE
FINGERPRINT = Fingerprint(bytes(range(16)))
PAGE_TOKENS = 32
# K and V of two layers, two heads, 8 + 8 dims, fp32.
PAGE_BYTES = PAGE_TOKENS * 2 * 2 * 16 * 4


_choose = functools.cache(choose)  # its measurements are slow beside such a small model


def random_model(config: AnyConfig = CONFIG, seed: int = 0) -> Ranker:
    torch.manual_seed(seed)
    model = Ranker(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval().requires_grad_(False)


def make_engine(
    config: AnyConfig = CONFIG,
    *,
    pages: int = 128,  # the smallest pool the settings allow: 1 MiB, 25 full rows
    dtype: str = "fp32",
    kernel: str = "cpu",
    seed: int = 0,
    **settings: Any,
) -> Engine:
    choice = _choose(kernel, dtype, settings.get("bitwise", False))
    values: dict[str, Any] = {"page_tokens": PAGE_TOKENS, "device_bytes": pages * PAGE_BYTES, **settings}
    model = random_model(config, seed).cast(choice.dtype)
    return Engine(model, FINGERPRINT, choice, EngineConfig(**values), ManualClock())


def events(count: int, seed: int, start_s: int = 1_700_000_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    items = rng.integers(0, 40, count)
    times = start_s + np.cumsum(rng.choice([0, 5, 300, 90_000], count))
    return items, times, rng.integers(1, 4, count)


def history(user: str, count: int, seed: int, **kwargs: Any) -> UserHistory:
    items, times, actions = events(count, seed)
    return UserHistory(user, items, times, actions, **kwargs)


def profile(config: AnyConfig) -> list[int]:
    """Values of the profile slots."""
    return [3, 5][: len(config.contextual)]


def dense_logits(engine: Engine, request: RankRequest) -> np.ndarray:
    """Logits of one request by the reference kernel, whole row, no cache; one pass a query time."""
    query = request.query_time
    if isinstance(query, int):
        return _dense(engine, request.history, request.candidates, query)
    one_by_one = [
        _dense(engine, request.history, request.candidates[i : i + 1], int(time))
        for i, time in enumerate(query)
    ]
    return np.concatenate(one_by_one)


def _dense(engine: Engine, user: UserHistory, candidates: np.ndarray, query_time: int) -> np.ndarray:
    shape = engine.model_config
    stride = anchor_stride(shape.max_history, engine.config.anchor_stride)
    first = anchor(user.sequence, shape.max_history, stride)
    first = max(first - user.first_sequence, 0)
    row = RowInput(
        torch.tensor(user.contextual),
        torch.tensor(user.items[first:]),
        torch.tensor(user.timestamps[first:]),
        torch.tensor(user.actions[first:]),
        torch.tensor(candidates),
        query_time,
        utc_offset_s=user.utc_offset_s,
    )
    with torch.inference_mode():
        return engine.model([row], ReferenceKernel())[0].numpy()
