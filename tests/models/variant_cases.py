"""Configurations that use every switch of every ranker, with random weights and random rows for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from formulas.maths import Arrays, Row
from msgspec.structs import replace

from relaygr.kernels.cpu import AtenRoute, BlockedKernel, OneDnnRoute
from relaygr.kernels.interface import Kernel, KvStore
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.hstu import HstuConfig
from relaygr.models.presets import AnyConfig
from relaygr.models.ranker import Ranker, RowInput
from relaygr.models.switches import META_RESEARCH, META_STU, NVIDIA, LayerSwitches, Table
from relaygr.models.transformer import TransformerConfig

# Against logits of a random model, relative to max(1, largest logit).
BF16_BOUND = 6e-2

KERNELS: dict[str, tuple[Kernel, torch.dtype, float]] = {
    "reference-fp64": (ReferenceKernel(), torch.float64, 1e-10),
    "cpu-fp64": (BlockedKernel(AtenRoute()), torch.float64, 1e-10),
    "reference-fp32": (ReferenceKernel(), torch.float32, 1e-5),
    "aten-fp32": (BlockedKernel(AtenRoute()), torch.float32, 1e-5),
    "aten-bf16": (BlockedKernel(AtenRoute()), torch.bfloat16, BF16_BOUND),
}
if OneDnnRoute.available(torch.float32):
    KERNELS["onednn-fp32"] = (BlockedKernel(OneDnnRoute()), torch.float32, 1e-5)
    KERNELS["onednn-fp32-bitwise"] = (BlockedKernel(OneDnnRoute(), bitwise=True), torch.float32, 1e-5)
if OneDnnRoute.available(torch.bfloat16):
    KERNELS["onednn-bf16"] = (BlockedKernel(OneDnnRoute()), torch.bfloat16, BF16_BOUND)

_SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_layers": 3,
    "num_heads": 2,
    "qk_dim": 16,
    "v_dim": 8,
    "max_seq_len": 96,
    "embedding_dim": 24,
    "stack_size": 20,
    "head_size": 28,
    "tasks": ("engage", "like"),
    "action_bits": ("engage", "like", "long_view"),
}
SLOTS = ("country", "language", "device")
TABLES = (Table(name="place", rows=9), Table(name="place", rows=9), Table(name="device", rows=5))

RELAY = HstuConfig(**_SIZES, scaling_seqlen=16, position_buckets=36, item_rows=101)
META = HstuConfig(
    **_SIZES,
    variant="meta_stu",
    layer=META_STU,
    scaling_seqlen=16,
    position_buckets=36,
    action_weights=(1, 6, 4),
    action_dim=5,
    items=Table(name="item", rows=60),
)
META_AGES = replace(META, position="backward_time", time_buckets=60, postprocess="time_norm")
META_SLOTS: dict[str, Any] = {"contextual": SLOTS, "slot_tables": TABLES, "slot_min_history": (0, 14, 40)}
NVIDIA_BASE = HstuConfig(
    **_SIZES,
    variant="nvidia",
    layer=NVIDIA,
    scaling_seqlen=16,
    position_buckets=70,
    norm_eps=1e-5,
    action_mode="interleave",
    postprocess="l2",
    head_sizes=(20,),
    items=Table(name="item", rows=60),
    actions=Table(name="action", rows=8),
)
NVIDIA_SLOTS: dict[str, Any] = {"contextual": SLOTS, "slot_tables": TABLES}
RESEARCH = HstuConfig(
    **{**_SIZES, "tasks": ("engage",)},
    variant="meta_research",
    layer=META_RESEARCH,
    scaling_seqlen=16,
    position_buckets=48,
    action_mode="none",
    postprocess="l2",
    items=Table(name="item", rows=60, first=1, unknown="default"),
)
TRANSFORMER = TransformerConfig(**_SIZES, mlp_size=40, item_rows=101)


def switched(config: HstuConfig, **switches: Any) -> HstuConfig:
    return replace(config, layer=replace(config.layer, **switches))


def _mixed(config: HstuConfig, seed: int) -> HstuConfig:
    """A random choice of all switches that every variant has.

    But for the residual: three layers without one multiply bf16's rounding beyond any bound worth stating.
    """
    rng = np.random.default_rng(seed)
    choices: dict[str, tuple[Any, ...]] = {
        "input_norm": ("affine", "plain"),
        "uvqk_bias": (False, True),
        "silu_on": ("u", "uvqk", "none"),
        "alpha": (0.0, 0.4, 1.0),
        "output_norm": ("affine", "plain", "group"),
        "concat": ("u_o_y", "u_z_y", "gate"),
        "out_bias": (False, True),
    }
    return switched(config, **{name: all_[rng.integers(len(all_))] for name, all_ in choices.items()})


def _unknown(config: HstuConfig, policy: str) -> HstuConfig:
    """All tables answer unknown ids by `policy`."""

    def lenient(table: Table) -> Table:
        return replace(table, unknown=policy, unknown_row=3)

    return replace(
        config,
        items=lenient(config.items),
        actions=config.actions and lenient(config.actions),
        slot_tables=tuple(lenient(table) for table in config.slot_tables),
    )


def _cases() -> dict[str, AnyConfig]:
    profile = {"contextual": ("country", "device")}
    meta_slots, nvidia_slots = replace(META_AGES, **META_SLOTS), replace(NVIDIA_BASE, **NVIDIA_SLOTS)
    one_by_one: dict[str, LayerSwitches | dict[str, Any]] = {
        "silu-uvqk": {"silu_on": "uvqk"},
        "silu-none": {"silu_on": "none"},
        "gate": {"concat": "gate"},
        "u-z-y": {"concat": "u_z_y"},
        "input-plain": {"input_norm": "plain"},
        "output-plain": {"output_norm": "plain"},
        "output-group": {"output_norm": "group"},
        "out-bias": {"out_bias": True},
        "no-residual": {"residual": False},
        "no-uvqk-bias": {"uvqk_bias": False},
        "alpha": {"alpha": 0.4},
    }
    cases: dict[str, AnyConfig] = {
        f"relay-{name}": switched(RELAY, **switches) for name, switches in one_by_one.items()
    }
    for seed in range(3):
        cases[f"relay-mixed-{seed}"] = _mixed(replace(RELAY, **profile, window=9), seed)
        cases[f"meta-mixed-{seed}"] = _mixed(replace(META_AGES, **META_SLOTS), 10 + seed)
        cases[f"nvidia-mixed-{seed}"] = _mixed(replace(NVIDIA_BASE, **NVIDIA_SLOTS), 20 + seed)
        cases[f"research-mixed-{seed}"] = _mixed(RESEARCH, 30 + seed)
    cases |= {
        "relay-no-positions": replace(RELAY, position_buckets=0, item_hashes=3),
        "relay-time-each": replace(
            RELAY, **profile, query_times="candidate", score_time_bias=True, last_seen=True
        ),
        "meta-forward": META,
        "meta-forward-slots": replace(META, **META_SLOTS, postprocess="l2"),
        "meta-time-each": replace(META, query_times="candidate", postprocess="time_norm"),
        "meta-ages": META_AGES,
        "meta-ages-slots": meta_slots,
        "meta-ages-embedding-dim": replace(meta_slots, time_bucket_limit="embedding_dim"),
        "meta-no-actions": replace(meta_slots, action_mode="none", action_weights=(), postprocess="none"),
        "meta-group-norm": switched(meta_slots, output_norm="group"),
        "meta-two-way": replace(meta_slots, contextual_two_way=True),
        "meta-window-tail": replace(meta_slots, window=6, full_tail=3),
        "meta-two-way-window-tail": replace(meta_slots, contextual_two_way=True, window=7, full_tail=2),
        "meta-default": _unknown(meta_slots, "default"),
        "meta-hash": _unknown(replace(META, **META_SLOTS), "hash"),
        "nvidia": NVIDIA_BASE,
        "nvidia-slots": nvidia_slots,
        "nvidia-two-way": replace(nvidia_slots, contextual_two_way=True),
        "nvidia-two-way-window": replace(nvidia_slots, contextual_two_way=True, window=11),
        "nvidia-token-mlp": replace(nvidia_slots, token_mlp=28),
        "nvidia-slot-mlp": replace(nvidia_slots, slot_mlp=12, contextual_two_way=True),
        "nvidia-mlps-relu-last": replace(nvidia_slots, token_mlp=28, slot_mlp=12, relu_last=True),
        "nvidia-no-positions": replace(nvidia_slots, position_buckets=0),
        "nvidia-no-actions": replace(
            nvidia_slots, action_mode="none", actions=None, position_buckets=30, head_sizes=()
        ),
        "nvidia-two-head-layers": replace(NVIDIA_BASE, head_sizes=(20, 12), window=6, full_tail=4),
        "nvidia-plain-input": switched(nvidia_slots, input_norm="plain", residual=False, uvqk_bias=False),
        "nvidia-unknown-row": _unknown(nvidia_slots, "unknown_row"),
        "research": RESEARCH,
        "research-position": switched(RESEARCH, relative_bias="position"),
        "research-no-bias": switched(RESEARCH, relative_bias="none"),
        "research-concat": switched(RESEARCH, concat="u_z_y"),
        "research-silu-none": switched(RESEARCH, silu_on="none"),
        "research-few-positions": replace(RESEARCH, position_buckets=20),
        "transformer": TRANSFORMER,
        "transformer-slots": replace(TRANSFORMER, **profile, last_seen=True),
        "transformer-window": replace(TRANSFORMER, **profile, window=5),
        "transformer-no-qk-norm": replace(TRANSFORMER, qk_norm=False, rope_theta=50.0),
        "transformer-time-each": replace(TRANSFORMER, query_times="candidate"),
    }
    return cases


CASES = _cases()


def random_model(config: AnyConfig, seed: int = 0) -> Ranker:
    """Weights that let every term be seen: no zero bias, no unit scale, no tiny table."""
    torch.manual_seed(seed)
    model = Ranker(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif name.endswith((".position", ".time", "time_bias")):
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model.eval().requires_grad_(False)


def arrays(model: Ranker) -> Arrays:
    """The model's state in float64."""
    return {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}


def random_row(config: AnyConfig, events: int, candidates: int, seed: int) -> Row:
    """Ids that the tables know, and some they do not where they take those; times of any distance."""
    rng = np.random.default_rng(seed)
    published = isinstance(config, HstuConfig) and config.variant != "relay"
    times = 1_700_000_000 + np.cumsum(rng.choice([0, 0, 40, 4_000, 300_000, 40_000_000], events))
    last = int(times[-1]) if events else 1_700_000_000
    if published:
        items = _ids(config.items, events + candidates, rng)
        slots = [_ids(table, 1, rng)[0] for table in config.slot_tables]
        actions = _ids(config.actions or Table(name="bits", rows=8), events, rng)
        if config.variant == "meta_stu" and slots and seed % 2:
            slots[0] = -1
    else:
        items = rng.integers(-(2**63), 2**63 - 1, events + candidates).tolist()
        slots = [2**53 + 1, -5][: len(config.contextual)]
        actions = rng.integers(0, 8, events).tolist()
    if events > 5 and candidates:
        items[events] = items[5]
    query = last + 77 * seed
    each = [query + 1_801 * i for i in range(candidates)]
    return Row(
        contextual=slots,
        items=items[:events],
        times=times.tolist(),
        actions=actions,
        candidates=items[events:],
        query_time=each if config.query_times == "candidate" else query,
        offset=0 if published else 3_600 * seed,
    )


def _ids(table: Table, count: int, rng: np.random.Generator) -> list[int]:
    ids = rng.integers(table.first, table.rows, count)
    if table.unknown != "reject":
        strange = np.array([table.first - 1, table.rows, 2**62, 60 + 2**31])
        ids = np.where(rng.random(count) < 0.3, rng.choice(strange, count), ids)
    return ids.tolist()


def row_input(row: Row, *, cached: int = 0, store: KvStore | None = None) -> RowInput:
    """The row as a model reads it."""
    columns = (row.contextual, row.items, row.times, row.actions, row.candidates)
    query = row.query_time if isinstance(row.query_time, int) else torch.tensor(row.query_time).long()
    return RowInput(
        *(torch.tensor(column, dtype=torch.int64) for column in columns),
        query_time=query,
        cached=cached,
        store=store,
        utc_offset_s=row.offset,
    )
