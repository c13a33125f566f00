"""What training starts from: a configuration that fits the data, and attention that finds own past events.

With random projections a model first has to learn that equal items match, which takes most of a short run.
"""

from __future__ import annotations

import math

import msgspec
import torch

from relaygr.config.settings import TrainConfig
from relaygr.data.dataset import Events
from relaygr.models.config import HstuConfig
from relaygr.models.layer import HstuLayer
from relaygr.models.ranker import HstuRanker

MATCH_SCALE = 2.0  # of queries and keys: sharp enough that other items add little
BIAS_NOW = -2.0  # of the score-time bias at age 0: silu is near 0 unless query and key match
BIAS_AGE = -7.0  # what the largest age adds to it


def ranker_config(
    base: HstuConfig, events: Events, train: TrainConfig, max_seq_len: int | None = None
) -> HstuConfig:
    """`base` for a dataset: its action bits are the tasks, its first bit ranks.

    The divisor is far below the preset's, which is a length: with that, what a short history adds to a
    row is too small to be learned from.

    Positions past the longest training window would keep their random rows, so they share the last one.

    Raises:
        ConfigError: a value of the result is out of range.
    """
    length = base.max_seq_len if max_seq_len is None else max_seq_len
    return msgspec.structs.replace(
        base,
        action_bits=events.meta.actions,
        tasks=events.meta.actions,
        max_seq_len=length,
        scaling_seqlen=train.scaling_seqlen,
        score_time_bias=train.score_time_bias,
        last_seen=train.last_seen,
        position_buckets=min(base.position_buckets, train.max_history, length),
    )


@torch.no_grad()
def start_from_matching(model: HstuRanker, items: int) -> None:
    """Set keys = queries in every layer, a score-time bias that falls with age, and the level of the logits.

    A candidate then attends to its own past events, recent ones first, and every item starts as probable
    as any other of a catalogue of `items`.
    """
    for layer in model.layers:
        assert isinstance(layer, HstuLayer)
        sizes = [2 * layer.value_size, layer.key_size, layer.key_size]
        _, queries, keys = torch.split(layer.uvqk.weight, sizes)
        queries.mul_(MATCH_SCALE)
        keys.copy_(queries)
        if layer.time_bias is not None:
            # The last row is that of tokens without a time: profile slots.
            ages = torch.linspace(0, 1, len(layer.time_bias) - 1)
            layer.time_bias[:-1] = BIAS_NOW + BIAS_AGE * ages[:, None]
    assert model.head.predict.second.bias is not None
    model.head.predict.second.bias.fill_(-math.log(items))
