"""A small model and small settings, for tests that train."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from relaygr.config.settings import TrainConfig
from relaygr.data.dataset import Events
from relaygr.models.hstu import HstuConfig
from relaygr.models.transformer import TransformerConfig

MakeEvents = Callable[[Sequence[tuple[int, int, int]]], Events]

TINY_MODEL = HstuConfig(
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    qk_dim=8,
    v_dim=8,
    max_seq_len=64,
    scaling_seqlen=16,
    item_rows=512,
    embedding_dim=16,
)
TINY_TRANSFORMER = TransformerConfig(
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    qk_dim=8,
    v_dim=8,
    mlp_size=24,
    max_seq_len=64,
    item_rows=512,
    embedding_dim=16,
)
TINY_TRAIN = TrainConfig(
    max_minutes=60.0,
    max_steps=12,
    batch_users=8,
    batch_rows=512,
    cuts=4,
    negatives=8,
    min_history=4,
    max_history=32,
    warmup_steps=2,
    eval_every_steps=4,
    eval_requests=20,
    patience=0,
    lr=1e-2,
)


def tiny_train(**changes: object) -> TrainConfig:
    return msgspec.structs.replace(TINY_TRAIN, **changes)
