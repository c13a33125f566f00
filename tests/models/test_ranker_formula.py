"""H1: the `relay` variant equals an independent formula: 1e-10 in fp64, 1e-5 in fp32, a bound in bf16."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from formulas import maths, relay
from variant_cases import KERNELS

from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.hstu import HstuConfig
from relaygr.models.ranker import Ranker, RowInput
from relaygr.models.tokens.times import last_seen_gap

BASE = HstuConfig(
    hidden_size=32,
    num_layers=3,
    num_heads=2,
    qk_dim=16,
    v_dim=8,
    max_seq_len=64,
    scaling_seqlen=16,
    position_buckets=24,
    item_rows=101,
    embedding_dim=16,
    action_bits=("engage", "like", "long_view"),
    tasks=("engage", "like"),
)
CONFIGS = {
    "plain": BASE,
    "contextual": msgspec.structs.replace(BASE, contextual=("country", "device")),
    "window": msgspec.structs.replace(BASE, window=6),
    "window-tail": msgspec.structs.replace(BASE, window=6, full_tail=3),
    "two-way": msgspec.structs.replace(BASE, contextual=("country", "device"), contextual_two_way=True),
    "last-seen": msgspec.structs.replace(BASE, contextual=("country",), last_seen=True),
    "time-bias": msgspec.structs.replace(BASE, contextual=("country",), score_time_bias=True),
}


def random_model(config: HstuConfig, seed: int = 0) -> Ranker:
    torch.manual_seed(seed)
    model = Ranker(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")) or "norm.weight" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval().requires_grad_(False)


def user(h: int, seed: int) -> tuple[list[int], list[int], list[int]]:
    rng = np.random.default_rng(seed)
    items = rng.integers(-(2**63), 2**63 - 1, h).tolist()
    times = (1_700_000_000 + np.cumsum(rng.choice([0, 0, 40, 4000, 300_000], h))).tolist()
    return items, times, rng.integers(0, 8, h).tolist()


@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("config_name", CONFIGS)
def test_batch_equals_the_dense_formula(config_name: str, kernel_name: str) -> None:
    config, (kernel, dtype, bound) = CONFIGS[config_name], KERNELS[kernel_name]
    model = random_model(config)
    weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    model = model.cast(dtype)
    rows, wanted = [], []
    shapes = ((0, 4), (1, 1), (13, 0), (31, 3), (32, 7), (40, 5))
    for i, (h, m) in enumerate(shapes):
        items, times, actions = user(h, i)
        query = (times[-1] if times else 1_700_000_000) + 77 * i
        slots = [2**53 + 1, -5][: len(config.contextual)]
        if h > 20:
            items[20] = items[5]
        candidates = [items[5] if h > 5 else 3, 2**31, 2**63 - 1, -(2**63), 3, 3, 9][:m]
        one = maths.Row(slots, items, times, actions, candidates, query, 3600 * i)
        wanted.append(relay.score(weights, config, one))
        columns = [torch.tensor(c, dtype=torch.int64) for c in (slots, items, times, actions, candidates)]
        rows.append(RowInput(*columns, query_time=query, utc_offset_s=3600 * i))
    with torch.inference_mode():
        got = model(rows, kernel)
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.shape == theirs.shape
        if theirs.size:
            scale = max(1.0, float(np.abs(theirs).max()))
            assert float(np.abs(mine.double().numpy() - theirs).max()) <= bound * scale


def test_every_int64_is_a_valid_item() -> None:
    from relaygr.models.hashing import hash_rows

    ids = [0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]
    for seed in (0, 1, 7):
        got = hash_rows(torch.tensor(ids), 1009, range(seed, seed + 1)).tolist()
        assert got[0] == [maths.hash_row(i, 1009, seed) for i in ids]
    spread = hash_rows(torch.arange(100_000), 1000, range(1))[0].bincount(minlength=1000)
    assert int(spread.min()) > 50
    assert int(spread.max()) < 160


def test_cacheable_follows_from_the_switches() -> None:
    """H3: whatever lets a later event change an earlier token's K/V ends append reuse."""
    for slots in ((), ("country",)):
        for two_way in (False, True):
            for window in (0, 8):
                for tail in (0, 2) if window else (0,):
                    for bias in (False, True):
                        config = msgspec.structs.replace(
                            BASE,
                            contextual=slots,
                            contextual_two_way=two_way,
                            window=window,
                            full_tail=tail,
                            score_time_bias=bias,
                        )
                        rewrites = bool(slots and two_way) or tail > 0
                        assert config.cacheable == ("request" if rewrites else "append")
                        assert rewrites == (not _append_is_exact(config))


def _append_is_exact(config: HstuConfig) -> bool:
    """Whether K/V of 20 tokens stay the same when 5 more events follow, by running the model."""
    from relaygr.memory.layout import KvLayout
    from relaygr.memory.stores import PrivateKv

    model = random_model(config).double()
    layout = KvLayout(config.num_layers, config.num_heads, config.qk_dim, config.v_dim, torch.float64, 32)
    items, times, actions = (torch.tensor(c) for c in user(25, 3))
    stores = []
    for h in (20, 25):
        store = PrivateKv(layout, 64)
        slots = torch.arange(len(config.contextual))
        row = RowInput(
            slots, items[:h], times[:h], actions[:h], torch.zeros(0, dtype=torch.int64), store=store
        )
        with torch.inference_mode():
            model([row], ReferenceKernel())
        stores.append(store)
    shared = 20 + len(config.contextual)
    for layer in range(config.num_layers):
        for a, b in zip(stores[0].read(layer, shared), stores[1].read(layer, shared), strict=True):
            if float((a - b).abs().max()) > 1e-12:
                return False
    return True


def test_last_seen_is_the_last_visible_event() -> None:
    rng = np.random.default_rng(0)
    for h in (0, 1, 2, 40):
        items = rng.choice([-(2**63), -1, 0, 3, 2**63 - 1], h)
        times = 1_700_000_000 + np.cumsum(rng.integers(0, 9000, h))
        candidates = np.array([-(2**63), -1, 0, 3, 5, 2**63 - 1] * 3)
        visible = rng.integers(0, h + 1, len(candidates))
        query = 1_700_500_000 + rng.integers(0, 9000, len(candidates))
        got = last_seen_gap(
            *(torch.tensor(c, dtype=torch.int64) for c in (items, times, candidates, visible, query))
        )
        for i, candidate in enumerate(candidates):
            before = [t for item, t in zip(items[: visible[i]], times, strict=False) if item == candidate]
            assert int(got[i]) == (relay.gap_row(int(query[i] - before[-1])) if before else 64)
