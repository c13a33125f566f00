"""Offline scores are those of one dense pass a request, whatever the family of the model."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from relaygr.core.errors import ConfigError
from relaygr.data.split import EvalRequest
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.hstu import HstuConfig
from relaygr.models.presets import AnyConfig
from relaygr.models.ranker import Ranker, RowInput
from relaygr.models.switches import META_RESEARCH, META_STU, NVIDIA, Table
from relaygr.models.transformer import TransformerConfig
from relaygr.training.scoring import RankerScorer, UserEvents

SIZES = {
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "qk_dim": 8,
    "v_dim": 8,
    "embedding_dim": 16,
    "item_rows": 97,
    "max_seq_len": 40,
}
HSTU = {**SIZES, "position_buckets": 40, "scaling_seqlen": 16}
ITEMS = Table(name="item", rows=50, first=1)
META = HstuConfig(
    **HSTU,
    variant="meta_stu",
    layer=META_STU,
    position="backward_time",
    time_buckets=64,
    action_weights=(1, 2),
    items=ITEMS,
)
CONFIGS: dict[str, AnyConfig] = {
    "relay": HstuConfig(**HSTU, last_seen=True, score_time_bias=True),
    "transformer": TransformerConfig(**SIZES, mlp_size=24, last_seen=True),
    "meta": META,
    "nvidia": HstuConfig(
        **HSTU,
        variant="nvidia",
        layer=NVIDIA,
        action_mode="interleave",
        postprocess="l2",
        items=ITEMS,
        actions=Table(name="action", rows=4),
    ),
    "research": HstuConfig(
        **HSTU,
        variant="meta_research",
        layer=META_RESEARCH,
        action_mode="none",
        postprocess="l2",
        items=ITEMS,
    ),
}


@pytest.mark.parametrize("stride", [None, 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_scores_are_those_of_single_dense_passes(name: str, stride: int | None) -> None:
    torch.manual_seed(0)
    model = Ranker(CONFIGS[name]).eval().double()
    rng = np.random.default_rng(1)
    items = rng.integers(1, 50, 90)
    times = 1_700_000_000 + np.cumsum(rng.choice([0, 3, 500, 90_000], 90))
    actions = rng.integers(1, 4, 90)
    requests, candidates = [], []
    for end in (1, 2, 9, 9, 17, 40, 60, 89):
        requests.append(EvalRequest(0, int(times[end - 1]) + end, end, (end, end + 1)))
        candidates.append(rng.integers(1, 50, int(rng.integers(1, 30))))
    scorer = RankerScorer(model, ReferenceKernel(), max_history=12, stride=stride)
    got = scorer.score(UserEvents.of((items, times, actions)), requests, candidates)
    for request, ids, mine in zip(requests, candidates, got, strict=True):
        end = request.history_end
        most = 12 if CONFIGS[name].max_history >= 12 else CONFIGS[name].max_history
        start = next(s for s in range(end) if s >= end - most and s % (stride or scorer.stride) == 0)
        start = 0 if end <= most else start
        columns = [torch.from_numpy(np.array(c)) for c in (items, times, actions)]
        row = RowInput(
            torch.zeros(0, dtype=torch.int64),
            *(c[start:end] for c in columns),
            torch.from_numpy(ids),
            request.time_s,
        )
        with torch.inference_mode():
            wanted = model([row], ReferenceKernel())[0][:, 0].numpy()
        assert np.abs(mine - wanted).max() <= 1e-10


def test_profile_slots_are_refused() -> None:
    config = msgspec.structs.replace(
        META, contextual=("country",), slot_tables=(Table(name="country", rows=9),)
    )
    with pytest.raises(ConfigError, match="contextual"):
        RankerScorer(Ranker(config), ReferenceKernel())
