"""Small engines for tests, and the slow way to score: one dense pass without any cache."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from relaygr.config.settings import EngineConfig
from relaygr.core.clock import ManualClock
from relaygr.core.ids import Fingerprint
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import RankRequest
from relaygr.kernels.reference import ReferenceKernel
from relaygr.kernels.select import choose
from relaygr.models.hstu import HstuConfig
from relaygr.models.ranker import Ranker, RowInput
from relaygr.models.window import anchor, anchor_stride

CONFIG = HstuConfig(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    qk_dim=8,
    v_dim=8,
    max_seq_len=160,
    scaling_seqlen=32,
    position_buckets=160,
    item_rows=257,
    embedding_dim=8,
    action_bits=("engage", "like"),
    tasks=("engage", "like"),
)
FINGERPRINT = Fingerprint(bytes(range(16)))
PAGE_TOKENS = 32
# K and V of two layers, two heads, 8 + 8 dims, fp32.
PAGE_BYTES = PAGE_TOKENS * 2 * 2 * 16 * 4


_choose = functools.cache(choose)  # its measurements are slow beside such a small model


def random_model(config: HstuConfig = CONFIG, seed: int = 0) -> Ranker:
    torch.manual_seed(seed)
    model = Ranker(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval().requires_grad_(False)


def make_engine(
    config: HstuConfig = CONFIG,
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


def dense_logits(engine: Engine, request: RankRequest) -> np.ndarray:
    """Logits of one request by the reference kernel, whole row, no cache."""
    user, shape = request.history, engine.model_config
    stride = anchor_stride(shape.max_history, engine.config.anchor_stride)
    first = anchor(user.sequence, shape.max_history, stride)
    first = max(first - user.first_sequence, 0)
    row = RowInput(
        torch.tensor(user.contextual),
        torch.tensor(user.items[first:]),
        torch.tensor(user.timestamps[first:]),
        torch.tensor(user.actions[first:]),
        torch.tensor(request.candidates),
        request.query_time,
        utc_offset_s=user.utc_offset_s,
    )
    with torch.inference_mode():
        return engine.model([row], ReferenceKernel())[0].numpy()
