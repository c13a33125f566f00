"""Write the golden vectors of the published variants: `python tests/models/make_golden.py FOLDER`.

Weights are random, logits come from the formulas in float64. An importer runs a model on them to show that it
computes what the variant's definition says.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np
from formulas import rankers
from formulas.maths import Arrays, Row
from safetensors.numpy import save_file

from relaygr.models.hstu import HstuConfig
from relaygr.models.ranker import Ranker
from relaygr.models.switches import META_RESEARCH, META_STU, NVIDIA, Table

_SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "qk_dim": 8, "v_dim": 12, "embedding_dim": 16}
CONFIGS = {
    "meta_stu": HstuConfig(
        variant="meta_stu",
        layer=META_STU,
        **_SIZES,
        max_seq_len=24,
        scaling_seqlen=32,
        contextual=("country", "language", "device"),
        slot_tables=(
            Table(name="place", rows=9),
            Table(name="place", rows=9),
            Table(name="device", rows=5),
        ),
        slot_min_history=(0, 0, 6),
        position="backward_time",
        position_buckets=20,
        time_buckets=48,
        action_weights=(1, 2, 12),
        action_bits=("click", "like", "share", "long_view"),
        action_dim=4,
        postprocess="time_norm",
        stack_size=20,
        head_size=24,
        tasks=("click", "long_view"),
        items=Table(name="item", rows=50),
    ),
    "nvidia": HstuConfig(
        variant="nvidia",
        layer=NVIDIA,
        **_SIZES,
        max_seq_len=40,
        scaling_seqlen=40,
        contextual=("country", "device"),
        slot_tables=(Table(name="country", rows=9), Table(name="device", rows=5)),
        position_buckets=30,
        norm_eps=1e-5,
        action_mode="interleave",
        postprocess="l2",
        token_mlp=24,
        slot_mlp=20,
        head_sizes=(24,),
        tasks=("click", "long_view"),
        items=Table(name="item", rows=50),
        actions=Table(name="action", rows=16),
    ),
    "meta_research": HstuConfig(
        variant="meta_research",
        layer=META_RESEARCH,
        **_SIZES,
        max_seq_len=24,
        scaling_seqlen=24,
        position_buckets=24,
        action_mode="none",
        postprocess="l2",
        items=Table(name="item", rows=50, first=1),
    ),
}
SHAPES = ((0, 3), (1, 2), (7, 5), (18, 4))  # events and candidates of each row


def weights(config: HstuConfig, seed: int) -> Arrays:
    """Random float32 tensors under the names and shapes of a model's state; scales stand around one."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, like in Ranker(config).state_dict().items():
        values = rng.standard_normal(tuple(like.shape)) * 0.3
        scale = like.ndim == 1 and "norm" in name and name.endswith("weight")
        tensors[name] = (values + scale).astype(np.float32)
    return tensors


def row(config: HstuConfig, events: int, candidates: int, seed: int) -> Row:
    """A user with items at odd times; some items repeat."""
    rng = np.random.default_rng(seed)
    times = 1_700_000_000 + np.cumsum(rng.choice([0, 45, 4_000, 200_000], events))
    last = int(times[-1]) if events else 1_700_000_000
    return Row(
        contextual=[int(rng.integers(table.rows)) for table in config.slot_tables],
        items=rng.integers(1, 50, events).tolist(),
        times=times.tolist(),
        actions=rng.integers(0, 16, events).tolist(),
        candidates=rng.integers(1, 50, candidates).tolist(),
        query_time=last + int(rng.integers(0, 9_000)),
    )


def write(folder: Path, name: str, seed: int) -> None:
    """One variant's file: `weights.*`, `row.<i>.*`, `logits.<i>`, and the configuration as metadata."""
    config, state = CONFIGS[name], weights(CONFIGS[name], seed)
    wide = {key: tensor.astype(np.float64) for key, tensor in state.items()}
    tensors: Arrays = {f"weights.{key}": tensor for key, tensor in state.items()}
    for i, (events, candidates) in enumerate(SHAPES):
        one = row(config, events, candidates, seed + i)
        columns = {
            "contextual": one.contextual,
            "items": one.items,
            "timestamps": one.times,
            "actions": one.actions,
            "candidates": one.candidates,
            "query_time": one.query_time,
        }
        for column, values in columns.items():
            tensors[f"row.{i}.{column}"] = np.array(values, np.int64)
        tensors[f"logits.{i}"] = np.ascontiguousarray(rankers.score(wide, config, one))
    metadata = {"config": msgspec.json.encode(config).decode()}
    save_file(tensors, folder / f"{name}.safetensors", metadata)


if __name__ == "__main__":
    for seed, variant in enumerate(CONFIGS):
        write(Path(sys.argv[1]), variant, 100 * seed)
