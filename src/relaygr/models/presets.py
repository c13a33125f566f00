"""Named configurations of every family."""

from __future__ import annotations

import difflib

from relaygr.core.errors import ConfigError
from relaygr.models.hstu import HstuConfig
from relaygr.models.switches import META_RESEARCH, META_STU, NVIDIA, Table
from relaygr.models.transformer import TransformerConfig

AnyConfig = HstuConfig | TransformerConfig

PRESETS: dict[str, AnyConfig] = {
    "hstu-tiny": HstuConfig(
        hidden_size=64, num_layers=2, num_heads=2, qk_dim=32, v_dim=32, embedding_dim=32, item_rows=65536
    ),
    "hstu-small": HstuConfig(hidden_size=256, num_layers=4, num_heads=4, qk_dim=64, v_dim=64),
    "hstu-kuairand": HstuConfig(
        hidden_size=512,
        num_layers=3,
        num_heads=4,
        qk_dim=128,
        v_dim=128,
        max_seq_len=8192,
        scaling_seqlen=8192,
    ),
    "hstu-mlperf": HstuConfig(hidden_size=512, num_layers=5, num_heads=4, qk_dim=128, v_dim=128),
    # The published shapes, with item tables of a size that fits a laptop.
    "meta-dlrm-v3": HstuConfig(
        variant="meta_stu",
        layer=META_STU,
        hidden_size=512,
        num_layers=5,
        num_heads=4,
        qk_dim=128,
        v_dim=128,
        embedding_dim=512,
        position="backward_time",
        position_buckets=8192,
        time_buckets=2048,
        postprocess="time_norm",
        action_weights=(1,),
        items=Table(name="item", rows=131072),
    ),
    "meta-research-ml20m": HstuConfig(
        variant="meta_research",
        layer=META_RESEARCH,
        hidden_size=256,
        num_layers=8,
        num_heads=4,
        qk_dim=64,
        v_dim=64,
        embedding_dim=256,
        max_seq_len=211,
        scaling_seqlen=211,
        position_buckets=211,
        action_mode="none",
        postprocess="l2",
        items=Table(name="item", rows=131264, first=1),
    ),
    "nvidia-kuairand": HstuConfig(
        variant="nvidia",
        layer=NVIDIA,
        hidden_size=512,
        num_layers=3,
        num_heads=4,
        qk_dim=128,
        v_dim=128,
        embedding_dim=512,
        max_seq_len=8192,
        scaling_seqlen=8192,
        position_buckets=8192,
        norm_eps=1e-5,
        action_mode="interleave",
        postprocess="l2",
        head_sizes=(512,),
        items=Table(name="item", rows=131072),
        actions=Table(name="action", rows=256),
    ),
    "transformer-tiny": TransformerConfig(
        hidden_size=64,
        num_layers=2,
        num_heads=2,
        qk_dim=32,
        v_dim=32,
        mlp_size=176,
        embedding_dim=32,
        item_rows=65536,
    ),
    "transformer-small": TransformerConfig(
        hidden_size=256, num_layers=4, num_heads=4, qk_dim=64, v_dim=64, mlp_size=688
    ),
}


def preset(name: str) -> AnyConfig:
    """The configuration called `name`.

    Raises:
        ConfigError: listing the nearest names.
    """
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.5)
    known = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(PRESETS)}"
    raise ConfigError("preset", f"{name!r} is unknown; {known}")
