"""One suite over every decoder kernel: each must equal a float64 softmax over the keys a row sees."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relaygr.kernels.beams import BeamKernel, Mode, merge_parts
from relaygr.kernels.cpu import CpuBeams, FlashRoute, PartRoute, TiledRoute
from relaygr.kernels.cpu.beams import FIXED_TILE
from relaygr.kernels.reference import ReferenceBeams

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
KERNELS: dict[str, BeamKernel] = {
    "reference": ReferenceBeams(),
    "cpu-flash": CpuBeams(FlashRoute()),
    "cpu-tiled": CpuBeams(TiledRoute()),
    "cpu-flash-uncut": CpuBeams(FlashRoute(), bitwise=False),
}
BITWISE = ["cpu-flash", "cpu-tiled"]
MODES: tuple[Mode, ...] = ("split", "joint", "replicate", "auto")
TOLERANCE = {F64: 1e-12, F32: 1e-5, BF16: 2e-2}
NAN = float("nan")


def draw(*size: int, seed: int, dtype: torch.dtype) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=g, dtype=F64).to(dtype)


class Step:
    """One decode step; rows that nothing may see are NaN: behind the prompt, and slots nobody names."""

    def __init__(
        self, dtype: torch.dtype, prompt: int, width: int, group: int, kv: int = 2, dim: int = 16, t: int = 2
    ) -> None:
        self.prompt, self.group = prompt, group
        self.q = draw(width, kv * group, dim, seed=1, dtype=dtype)
        g = torch.Generator().manual_seed(2)
        # Every depth has slots of its own, of its own number, as a request with a width a level has them.
        sizes = [width + 3 + d for d in range(t)]
        columns = [torch.randint(0, size, (width,), generator=g) for size in sizes]
        places = [column + sum(sizes[:d]) for d, column in enumerate(columns)]
        self.anc, slots = torch.stack(places, dim=1).int(), sum(sizes) + 2
        self.shared = tuple(draw(kv, prompt + 5, dim, seed=s, dtype=dtype) for s in (3, 4))
        self.own = tuple(draw(slots, kv, dim, seed=s, dtype=dtype) for s in (5, 6))
        unseen = torch.ones(slots, dtype=torch.bool)
        unseen[self.anc.flatten().long()] = False
        for x in self.shared:
            x[:, prompt:] = NAN
        for x in self.own:
            x[unseen] = NAN

    def run(self, kernel: BeamKernel, mode: Mode) -> Tensor:
        with torch.inference_mode():
            return kernel.beams(self.q, self.shared, self.prompt, *self.own, self.anc, mode)

    def want(self) -> Tensor:
        """[W, Hq, d] in float64, one softmax over the concatenated scores."""
        slots = self.anc.long()
        keys, values = (x[:, : self.prompt].double() for x in self.shared)  # [Hkv, P, d]
        own_k, own_v = (x[slots].double() for x in self.own)  # [W, t, Hkv, d]
        q = self.q.double().unflatten(1, (len(keys), self.group)) / self.q.shape[2] ** 0.5
        scores = [torch.einsum("wkgd,kpd->wkgp", q, keys), torch.einsum("wkgd,wtkd->wkgt", q, own_k)]
        weights = torch.cat(scores, dim=-1).softmax(-1).split([self.prompt, slots.shape[1]], dim=-1)
        out = torch.einsum("wkgp,kpd->wkgd", weights[0], values)
        return (out + torch.einsum("wkgt,wtkd->wkgd", weights[1], own_v)).flatten(1, 2)


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    assert got.shape == want.shape
    assert not got.numel() or float((got.double() - want).abs().max()) <= TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("name", "group"), [("cpu-flash", 1), ("cpu-flash", 2), ("cpu-flash", 8), ("cpu-tiled", 2)]
)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("prompt", [1, 17, 512, 4096])
def test_every_mode_equals_one_softmax(name: str, dtype: torch.dtype, prompt: int, group: int) -> None:
    for width in (1, 7, 256):
        heavy = prompt == 4096 and width == 256
        step = Step(dtype, prompt, width, group, kv=1 if prompt == 4096 else 2, dim=4 if heavy else 16)
        want = step.want()
        for mode in MODES[:3]:
            if mode == "replicate" and heavy and group != 1:
                continue  # a copy of 4,096 rows for each of 256 beams, and nothing that other cells lack
            close(step.run(KERNELS[name], mode), want, dtype)


@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("prompt", [0, 1, 17])
@pytest.mark.parametrize("group", [1, 2, 8])
def test_small_steps_on_every_kernel(dtype: torch.dtype, prompt: int, group: int) -> None:
    for kernel in KERNELS.values():
        for width, t in ((0, 1), (1, 1), (7, 3)):
            step = Step(dtype, prompt, width, group, dim=8, t=t)
            for mode in MODES:
                close(step.run(kernel, mode), step.want(), dtype)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_prompt_rows_see_the_past_and_themselves(name: str, dtype: torch.dtype, group: int) -> None:
    kv, dim = 2, 8
    for past, rows in ((0, 0), (0, 1), (0, 37), (5, 1), (130, 3), (128, 2), (100, 200)):
        if name == "reference" and rows > 100:
            continue
        tokens = past + rows
        q = draw(rows, kv * group, dim, seed=1, dtype=dtype)
        k, v = (draw(tokens, kv, dim, seed=s, dtype=dtype) for s in (2, 3))
        before = tuple(x.transpose(0, 1).clone() for x in (k, v))
        for x in before:
            x[:, past:] = NAN  # not written yet
        got = KERNELS[name].causal(q, k[past:], v[past:], before if past else None, past)
        heads = [x.double().transpose(0, 1).repeat_interleave(group, dim=0) for x in (k, v)]
        scores = torch.einsum("nhd,hpd->hnp", q.double(), heads[0]) / dim**0.5
        hidden = torch.ones(rows, tokens, dtype=torch.bool).triu(past + 1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        close(got, torch.einsum("hnp,hpd->nhd", weights, heads[1]), dtype)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", BITWISE)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("group", [1, 2])
def test_bits_of_a_prompt_do_not_depend_on_how_it_was_cut(name: str, dtype: torch.dtype, group: int) -> None:
    kernel, tokens = KERNELS[name], 2 * FIXED_TILE + 50
    q = draw(tokens, 2 * group, 16, seed=1, dtype=dtype)
    k, v = (draw(tokens, 2, 16, seed=s, dtype=dtype) for s in (2, 3))
    whole = kernel.causal(q, k, v, None, 0)
    for cuts in ((0, 1, tokens), (0, 100, 130, 256, tokens), (0, tokens - 1, tokens)):
        parts = []
        for a, b in pairwise(cuts):
            past = tuple(torch.nn.functional.pad(x[:a].transpose(0, 1), (0, 0, 0, 7)) for x in (k, v))
            parts.append(kernel.causal(q[a:b], k[a:b], v[a:b], past, a))
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("name", KERNELS)
def test_calls_in_between_change_no_bit(name: str) -> None:
    kernel = KERNELS[name]
    mine, stranger = Step(F32, 300, 33, 2), Step(F32, 77, 12, 2, dim=8)
    for mode in MODES:
        alone = mine.run(kernel, mode)
        stranger.run(kernel, mode)
        assert torch.equal(mine.run(kernel, mode), alone)


@pytest.mark.parametrize("name", KERNELS)
def test_strided_inputs_are_as_good(name: str) -> None:
    """A projection gives queries, keys and values as slices of one matrix."""
    step = Step(F32, 40, 9, 2)
    want = step.run(KERNELS[name], "split")
    packed = torch.randn(9, 3 * 4, 16)
    packed[:, 4:8] = step.q
    step.q = packed[:, 4:8]
    step.shared = tuple(torch.stack([x, x], dim=2)[:, :, 1] for x in step.shared)
    close(step.run(KERNELS[name], "split"), want.double(), F32)


@pytest.mark.parametrize("name", KERNELS)
def test_another_slot_is_another_answer(name: str) -> None:
    """The index is what is read: one wrong entry changes that beam, and no other."""
    step = Step(F32, 40, 9, 2)
    for x in step.own:
        torch.nan_to_num_(x, nan=3.0)
    right = step.run(KERNELS[name], "split")
    step.anc[4, 0] = (step.anc[4, 0] + 1) % 12
    wrong = step.run(KERNELS[name], "split")
    same = (right == wrong).all(-1).all(-1)
    assert same.tolist() == [b != 4 for b in range(9)]


@pytest.mark.parametrize("route", [FlashRoute(), TiledRoute()], ids=lambda r: r.name)
@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("causal", [False, True])
def test_parts_carry_a_natural_log_sum_exp(route: PartRoute, dtype: torch.dtype, causal: bool) -> None:
    q, k, v = (draw(2, 3, 700, 8, seed=s, dtype=dtype) for s in (1, 2, 3))
    out, lse = route.attend(q, k, v, causal)
    scores = q.double() @ k.double().transpose(-1, -2) / 8**0.5
    if causal:
        scores.masked_fill_(torch.ones(700, 700, dtype=torch.bool).triu(1), -torch.inf)
    assert float((lse.double() - scores.logsumexp(-1)).abs().max()) <= TOLERANCE[dtype]
    assert float((out.double() - scores.softmax(-1) @ v.double()).abs().max()) <= TOLERANCE[dtype]
    assert out.dtype == lse.dtype == (F64 if dtype == F64 else F32)


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 40), min_size=2, max_size=2).map(sorted),
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([0.1, 1.0, 60.0]),
)
def test_merging_is_associative(cuts: list[int], seed: int, scale: float) -> None:
    """(a + b) + c = a + (b + c) = all at once, empty parts and far apart scores included."""
    scores = draw(3, 40, seed=seed, dtype=F64) * scale
    values = draw(3, 40, 5, seed=seed + 1, dtype=F64)

    def part(a: int, b: int) -> tuple[Tensor, Tensor]:
        lse = scores[:, a:b].logsumexp(-1) if b > a else torch.full((3,), -torch.inf, dtype=F64)
        out = torch.einsum("rp,rpd->rd", scores[:, a:b].softmax(-1), values[:, a:b])
        return out, lse

    a, b, c = part(0, cuts[0]), part(cuts[0], cuts[1]), part(cuts[1], 40)
    left = merge_parts(*merge_parts(*a, *b), *c)
    right = merge_parts(*a, *merge_parts(*b, *c))
    for got in (left, right):
        for mine, whole in zip(got, part(0, 40), strict=True):
            torch.testing.assert_close(mine, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_arguments_that_do_not_fit_are_refused(name: str) -> None:
    kernel = KERNELS[name]

    def changed(match: str, mode: str = "split", **fields: object) -> None:
        step = Step(F32, 6, 4, 2)
        for key, value in fields.items():
            setattr(step, key, value)
        with pytest.raises(ValueError, match=match):
            step.run(kernel, mode)  # type: ignore[arg-type]

    changed("mode: 'fast'", mode="fast")
    changed("not a multiple", q=torch.zeros(4, 3, 16))
    changed("anc", anc=torch.zeros(4, 2, dtype=torch.int64))
    changed("anc", anc=torch.zeros(5, 2, dtype=torch.int32))
    changed("depth 0", anc=torch.zeros(4, 0, dtype=torch.int32))
    changed("depth 18", anc=torch.zeros(4, 18, dtype=torch.int32))
    changed("12 tokens", prompt=12)
    changed("not the dtype of q", own=(torch.zeros(17, 2, 16, dtype=F64),) * 2)
    changed("own_k", own=(torch.zeros(17, 2, 16), torch.zeros(17, 2, 8)))
    changed("K/V heads", own=(torch.zeros(2, 8, 2, 16),) * 2)
    changed("shared", shared=(torch.zeros(1, 9, 16),) * 2)
    q, k = torch.zeros(3, 4, 8), torch.zeros(3, 2, 8)
    with pytest.raises(ValueError, match="without a past"):
        kernel.causal(q, k, k, None, 2)
    with pytest.raises(ValueError, match="v_new"):
        kernel.causal(q, k, k[:2], None, 0)
