"""One suite over every kernel: each must equal the formula, alone and in a jagged batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_oracle import ListStore, make_row, oracle, run_kernel

from relaygr.kernels.cpu import AtenRoute, BlockedKernel, OneDnnRoute
from relaygr.kernels.cpu.ranges import KEY_BLOCK
from relaygr.kernels.interface import AttentionSpec, Kernel, Segment
from relaygr.kernels.reference import ReferenceKernel

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16

KERNELS: dict[str, tuple[Kernel, torch.dtype]] = {
    "reference-fp64": (ReferenceKernel(), F64),
    "aten-fp64": (BlockedKernel(AtenRoute()), F64),
    "aten-fp64-bitwise": (BlockedKernel(AtenRoute(), bitwise=True), F64),
    "aten-fp32": (BlockedKernel(AtenRoute()), F32),
    "aten-fp32-bitwise": (BlockedKernel(AtenRoute(), bitwise=True), F32),
    "aten-bf16": (BlockedKernel(AtenRoute()), BF16),
}
for _dtype, _name in ((F32, "fp32"), (BF16, "bf16")):
    if OneDnnRoute.available(_dtype):
        KERNELS[f"onednn-{_name}"] = (BlockedKernel(OneDnnRoute()), _dtype)
        KERNELS[f"onednn-{_name}-bitwise"] = (BlockedKernel(OneDnnRoute(), bitwise=True), _dtype)

# Largest accepted difference relative to the largest output: bf16 keeps 8 bits, and K/V, scores and
# outputs are each rounded once.
TOLERANCE = {F64: 1e-13, F32: 5e-6, BF16: 3e-2}

SHAPE = {"heads": 2, "qk_dim": 8, "v_dim": 16, "alpha": 8**-0.5, "divisor": 64.0}
SPECS = {
    "causal": AttentionSpec(**SHAPE),
    "contextual": AttentionSpec(**SHAPE, contextual=3),
    "window": AttentionSpec(**SHAPE, window=20),
    "window-1": AttentionSpec(**SHAPE, window=1),
    "window-tail": AttentionSpec(**SHAPE, window=20, full_tail=7),
    "two-way": AttentionSpec(**SHAPE, contextual=3, two_way=True),
    "two-way-window": AttentionSpec(**SHAPE, contextual=3, two_way=True, window=20),
    "softmax": AttentionSpec(**SHAPE, weights="softmax"),
    "softmax-contextual-window": AttentionSpec(**SHAPE, contextual=3, window=20, weights="softmax"),
    "two-way-one-slot": AttentionSpec(**SHAPE, contextual=1, two_way=True, window=33),
}
# (cached, new, candidates): empty history, one token, page and alignment edges, a tile and a bit.
CASES = [
    (0, 0, 5),
    (0, 1, 1),
    (1, 0, 3),
    (0, 31, 2),
    (31, 1, 16),
    (0, 32, 17),
    (32, 1, 1),
    (33, 31, 40),
    (64, 64, 0),
    (5, 129, 3),
    (0, 0, 0),
]


def check(
    got: list[tuple[torch.Tensor, torch.Tensor]], rows: list, spec: AttentionSpec, dtype: torch.dtype
) -> None:
    for (history, candidates), row in zip(got, rows, strict=True):
        want = oracle(spec, row)
        both = torch.cat([history, candidates]).double()
        scale = max(float(want.abs().max()), 1e-3) if want.numel() else 1.0
        difference = (both - want[row.cached :]).abs()
        assert not difference.numel() or float(difference.max()) <= TOLERANCE[dtype] * scale, (
            row.cached,
            row.tokens,
            row.candidates,
        )


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("spec_name", SPECS)
def test_jagged_batch_equals_the_formula(name: str, spec_name: str) -> None:
    kernel, dtype = KERNELS[name]
    spec = SPECS[spec_name]
    rows = []
    for i, (cached, new, m) in enumerate(CASES):
        if spec.two_way and cached > 0:
            cached, new = 0, cached + new  # two-way slots rewrite the past: such K/V are never cached
        if cached + new < spec.contextual:
            continue
        rows.append(make_row(spec, cached, new, m, seed=i))
    stores = [ListStore(spec, dtype) for _ in rows]
    check(run_kernel(kernel, spec, rows, stores, dtype), rows, spec, dtype)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("kind", ["key", "pair", "all", "high"])
@pytest.mark.parametrize("spec_name", ["causal", "softmax"])
def test_bias_and_candidate_ends_equal_the_formula(name: str, kind: str, spec_name: str) -> None:
    kernel, dtype = KERNELS[name]
    spec = SPECS[spec_name]
    rows = [make_row(spec, c, n, m, seed=i, bias=kind) for i, (c, n, m) in enumerate(CASES)]
    stores = [ListStore(spec, dtype) if row.cached else None for row in rows]
    check(run_kernel(kernel, spec, rows, stores, dtype), rows, spec, dtype)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("spec_name", ["causal", "softmax"])
def test_equal_early_ends_do_not_see_later_keys(name: str, spec_name: str) -> None:
    kernel, dtype = KERNELS[name]
    spec = SPECS[spec_name]
    row = make_row(spec, 0, 100, 4, seed=3)
    row.high = torch.full((4,), 37)
    check(run_kernel(kernel, spec, [row], [None], dtype), [row], spec, dtype)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", [n for n in KERNELS if "reference" not in n])
def test_several_row_tiles_and_key_blocks(name: str) -> None:
    kernel, dtype = KERNELS[name]
    reference = ReferenceKernel()
    window = AttentionSpec(**SHAPE, window=300)
    for spec in (SPECS["causal"], window, SPECS["softmax"], replace(window, weights="softmax")):
        rows = [
            make_row(spec, 0, 2 * 512 + 5, 512 + 3, seed=1),
            make_row(spec, KEY_BLOCK - 3, 40, 20, seed=2),
            make_row(spec, KEY_BLOCK + 64, 1, 1, seed=3),
        ]
        want = run_kernel(reference, spec, rows, [ListStore(spec, F64) for _ in rows], F64)
        got = run_kernel(kernel, spec, rows, [ListStore(spec, dtype) for _ in rows], dtype)
        for mine, theirs in zip(got, want, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                assert float((a.double() - b).abs().max()) <= TOLERANCE[dtype] * float(b.abs().max())


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("page", [8, 32, 256])
@pytest.mark.parametrize("spec_name", ["causal", "softmax"])
def test_any_page_size(name: str, page: int, spec_name: str) -> None:
    kernel, dtype = KERNELS[name]
    spec = SPECS[spec_name]
    rows = [make_row(spec, 3, 10, 2, seed=1), make_row(spec, 250, 10, 2, seed=2)]
    stores = [ListStore(spec, dtype, page) for _ in rows]
    check(run_kernel(kernel, spec, rows, stores, dtype), rows, spec, dtype)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("spec_name", ["causal", "softmax"])
def test_strangers_and_cuts_change_nothing(name: str, spec_name: str) -> None:
    """H2: fp64 to 1e-12, bit-exact with fixed row tiles."""
    kernel, dtype = KERNELS[name]
    exact = "bitwise" in name
    if not exact and dtype != F64:
        pytest.skip("bit-equality is promised for fixed row tiles only")
    spec = SPECS[spec_name]
    whole = make_row(spec, 0, 300, 150, seed=5)
    alone = run_kernel(kernel, spec, [whole], [ListStore(spec, dtype)], dtype)[0][1]
    strangers = [make_row(spec, 7, 90, 33, seed=i) for i in (11, 12)]
    with_strangers = run_kernel(
        kernel, spec, [strangers[0], whole, strangers[1]], [ListStore(spec, dtype) for _ in range(3)], dtype
    )[1][1]
    store = ListStore(spec, dtype)
    for start, stop in ((0, 1), (1, 130), (130, 256), (256, 299), (299, 300)):
        part = make_row(spec, 0, 0, 0, seed=0)
        part.q, part.k, part.v = whole.q[:stop], whole.k[:stop], whole.v[:stop]
        part.cached = start
        run_kernel(kernel, spec, [part], [_Kept(store)], dtype)
    pieces = []
    for first in range(0, 150, 7):
        part = make_row(spec, 0, 0, 0, seed=0)
        last = min(first + 7, 150)
        index = torch.cat([torch.arange(300), torch.arange(300 + first, 300 + last)])
        part.q, part.k, part.v = whole.q[index], whole.k[index], whole.v[index]
        part.cached, part.candidates = 300, last - first
        pieces.append(run_kernel(kernel, spec, [part], [_Kept(store)], dtype)[0][1])
    for other in (with_strangers, torch.cat(pieces)):
        if exact:
            assert torch.equal(alone, other)
        assert float((alone.double() - other.double()).abs().max()) <= 1e-12 or dtype != F64


@pytest.mark.parametrize("name", [n for n in KERNELS if "bitwise" in n])
@pytest.mark.parametrize("kind", ["key", "pair", "all"])
@pytest.mark.parametrize("spec_name", ["causal", "softmax"])
def test_one_biased_candidate_has_the_bits_it_has_among_others(name: str, kind: str, spec_name: str) -> None:
    kernel, dtype = KERNELS[name]
    spec = SPECS[spec_name]
    whole = make_row(spec, 0, 70, 20, seed=5, bias=kind)
    together = run_kernel(kernel, spec, [whole], [ListStore(spec, dtype)], dtype)[0][1]
    for i in range(20):
        index = torch.cat([torch.arange(70), torch.tensor([70 + i])])
        one = make_row(spec, 0, 0, 0, seed=0)
        one.q, one.k, one.v = whole.q[index], whole.k[index], whole.v[index]
        one.bias, one.same, one.candidates = whole.bias[:, index][:, :, index], whole.same, 1
        alone = run_kernel(kernel, spec, [one], [ListStore(spec, dtype)], dtype)[0][1]
        assert torch.equal(alone[0], together[i])


class _Kept:
    """A store whose cached rows stay what an earlier run computed."""

    def __init__(self, store: ListStore) -> None:
        self.store = store

    def write(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        if start or not len(self.store.k):
            self.store.write(layer, start, k, v)

    def read(self, layer: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.store.read(layer, tokens)


def test_segments_are_checked() -> None:
    with pytest.raises(ValueError, match="need a store"):
        Segment(3, 0, 1, None)
    with pytest.raises(ValueError, match="negative"):
        Segment(0, -1, 1, None)
    early = Segment(0, 4, 1, None, torch.tensor([2]))
    with pytest.raises(ValueError, match="candidate_high"):
        ReferenceKernel().plan(SPECS["window"], [early], F32)
