"""What training starts from: a configuration that fits the data, and attention that finds own past events.

With random projections a model first has to learn that equal items match, which takes most of a short run.
"""

from __future__ import annotations

import math

import msgspec
import torch

from relaygr.config.settings import TrainConfig
from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.models.heads.multitask import MultiTaskHead
from relaygr.models.hstu import HstuConfig
from relaygr.models.layers.hstu import HstuLayer
from relaygr.models.layers.transformer import TransformerLayer
from relaygr.models.presets import AnyConfig
from relaygr.models.ranker import Ranker
from relaygr.models.transformer import TransformerConfig

MATCH_SCALE = 2.0  # of queries and keys: sharp enough that other items add little
BIAS_NOW = -2.0  # of the score-time bias at age 0: silu is near 0 unless query and key match
BIAS_AGE = -7.0  # what the largest age adds to it


def ranker_config(
    base: AnyConfig, events: Events, train: TrainConfig, max_seq_len: int | None = None
) -> AnyConfig:
    """`base` for a dataset: its action bits are the tasks, its first bit ranks.

    The divisor is far below the preset's, which is a length: with that, what a short history adds to a
    row is too small to be learned from.

    Positions past the longest training window would keep their random rows, so they share the last one.

    Raises:
        ConfigError: a value of the result is out of range, or the variant is served here but not trained.
    """
    if isinstance(base, HstuConfig) and base.variant != "relay":
        raise ConfigError("preset", f"variant {base.variant!r} is served, not trained; train 'relay' ones")
    length = base.max_seq_len if max_seq_len is None else max_seq_len
    fitted = msgspec.structs.replace(
        base,
        action_bits=events.meta.actions,
        tasks=events.meta.actions,
        max_seq_len=length,
        last_seen=train.last_seen,
        position_buckets=min(base.position_buckets, train.max_history, length),
    )
    if isinstance(fitted, TransformerConfig):
        return fitted
    return msgspec.structs.replace(
        fitted, scaling_seqlen=train.scaling_seqlen, score_time_bias=train.score_time_bias
    )


@torch.no_grad()
def start_from_matching(model: Ranker, items: int) -> None:
    """Set keys = queries in every layer, a score-time bias that falls with age, and the level of the logits.

    A candidate then attends to its own past events, recent ones first, and every item starts as probable
    as any other of a catalogue of `items`.
    """
    assert isinstance(model.head, MultiTaskHead)
    assert model.head.predict.second.bias is not None
    model.head.predict.second.bias.fill_(-math.log(items))
    for layer in model.layers:
        if isinstance(layer, TransformerLayer):
            queries, keys = layer.qkv.weight[: 2 * layer.key_size].chunk(2)
            keys.copy_(queries)
            continue
        assert isinstance(layer, HstuLayer)
        sizes = [2 * layer.value_size, layer.key_size, layer.key_size]
        _, queries, keys = torch.split(layer.uvqk.weight, sizes)
        queries.mul_(MATCH_SCALE)
        keys.copy_(queries)
        if layer.time_bias is not None:
            # The last row is that of tokens without a time: profile slots.
            ages = torch.linspace(0, 1, len(layer.time_bias) - 1)
            layer.time_bias[:-1] = BIAS_NOW + BIAS_AGE * ages[:, None]
