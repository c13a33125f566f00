"""The short convolution by prompt rows and records, alone and in front of every recurrence."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrent_cases import F32, F64, SPECS, draw_tokens, error, read, transition
from torch import Tensor

from relaygr.generation.ancestors import Ancestors
from relaygr.kernels.convolution import convolve_beams, convolve_prompt, empty_rows
from relaygr.kernels.cpu import CpuRecurrent
from relaygr.kernels.materialised import MaterialisedBeams
from relaygr.kernels.recurrent import RecurrentSpec
from relaygr.kernels.reference import reference_beams, reference_prompt
from relaygr.memory.records import RecordPool
from relaygr.memory.recurrent import RecurrentLayout

TOLERANCE = {F64: 1e-12, F32: 1e-5}
PROMPTS = (0, 1, 2, 3, 1000)


def draw(*size: int, seed: int) -> Tensor:
    """Rounded to fp32, so that both precisions see the same numbers."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()


def whole(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Torch's own causal convolution of a whole row [n, C], zeros before its start."""
    channels, taps = weight.shape
    padded = F.pad(x.T[None], (taps - 1, 0))
    return F.conv1d(padded, weight[:, None], bias, groups=channels)[0].T


@pytest.mark.parametrize("dtype", [F64, F32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("tokens", PROMPTS)
def test_a_prompt_equals_torch_s_convolution(tokens: int, taps: int, dtype: torch.dtype) -> None:
    x, weight, bias = draw(tokens, 6, seed=1), draw(6, taps, seed=2), draw(6, seed=3)
    for some in (bias, None):
        want = whole(x, weight, some) if tokens else x
        its = None if some is None else some.to(dtype)
        args = x.to(dtype), weight.to(dtype), its, empty_rows(taps, 6, dtype)
        for y, rows in (convolve_prompt(*args), reference_prompt(*args)):
            assert error(y, want) <= TOLERANCE[dtype]
            padded = F.pad(x, (0, 0, taps - 1, 0))
            assert torch.equal(rows.double(), padded[tokens:])


def test_parts_of_a_prompt_give_the_same_bits() -> None:
    x, weight, bias = draw(50, 6, seed=1).float(), draw(6, 4, seed=2).float(), draw(6, seed=3).float()
    want, left = convolve_prompt(x, weight, bias, empty_rows(4, 6, F32))
    rows, parts = empty_rows(4, 6, F32), []
    for a, b in pairwise((0, 1, 3, 3, 40, 50)):
        y, rows = convolve_prompt(x[a:b], weight, bias, rows)
        parts.append(y)
    assert torch.equal(torch.cat(parts), want)
    assert torch.equal(rows, left)


@settings(max_examples=60, deadline=None)
@given(
    widths=st.lists(st.integers(1, 6), min_size=1, max_size=8).map(tuple),
    tokens=st.integers(0, 5),
    taps=st.integers(1, 5),
    seed=st.integers(0, 2**20),
    half=st.booleans(),
)
def test_a_beam_s_window_is_its_path(
    widths: tuple[int, ...], tokens: int, taps: int, seed: int, half: bool
) -> None:
    """Any fork tree: the same bits as the beam's whole row in one piece; rows are kept in half, too."""
    g = torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16 if half else F32
    weight, bias = draw(5, taps, seed=seed).float(), draw(5, seed=seed + 1).float()
    prompt = torch.randn(tokens, 5, generator=g).to(dtype)
    _, rows = convolve_prompt(prompt, weight, bias, empty_rows(taps, 5, dtype))
    starts = tuple(sum(widths[:d]) for d in range(len(widths)))
    own = torch.full((sum(widths), 5), float("nan"), dtype=dtype)
    ancestors, paths = Ancestors(len(widths), max(widths)), [prompt]
    for start, width in zip(starts, widths, strict=True):
        parents = torch.randint(0, len(paths), (width,), generator=g)
        anc = ancestors.fork(parents)
        x = torch.randn(width, 5, generator=g).to(dtype)
        y = convolve_beams(x, weight, bias, rows, own, starts, anc)
        assert y.dtype == F32
        slow = reference_beams(x, weight, bias, rows, own, starts, anc)
        torch.testing.assert_close(y, slow, rtol=1e-5, atol=1e-5)
        own[start : start + width] = x
        paths = [torch.cat((paths[p], x[b][None])) for b, p in enumerate(parents.tolist())]
        for b, path in enumerate(paths):
            alone, _ = convolve_prompt(path, weight, bias, empty_rows(taps, 5, dtype))
            assert torch.equal(y[b], alone[-1])


class Mixer:
    """A convolution over q, k and v, SiLU, unit keys and queries, then a recurrence."""

    def __init__(self, spec: RecurrentSpec, dtype: torch.dtype) -> None:
        self.spec, self.dtype = spec, dtype
        self.sizes = (
            spec.key_heads * spec.key_dim,
            spec.key_heads * spec.key_dim,
            spec.value_heads * spec.value_dim,
        )
        self.channels = sum(self.sizes)
        self.weight = draw(self.channels, 4, seed=11).to(dtype)

    def parts(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        spec = self.spec
        q, k, v = F.silu(y).split(self.sizes, dim=-1)
        q, k = (F.normalize(x.unflatten(-1, (spec.key_heads, spec.key_dim)), dim=-1) for x in (q, k))
        return q, k, v.unflatten(-1, (spec.value_heads, spec.value_dim))


@pytest.mark.parametrize("tokens", PROMPTS)
@pytest.mark.parametrize("name", SPECS)
def test_recurrences_behind_a_convolution(name: str, tokens: int) -> None:
    """Records of both against a whole row for every beam, through torch's convolution, in float64."""
    spec, widths = SPECS[name], (5, 7, 3, 6, 4)
    g = torch.Generator().manual_seed(tokens)
    total = tokens + sum(widths)
    gates = draw_tokens(spec, total, g)  # decays and strengths; q, k, v come from the convolution
    raw = torch.randn(total, Mixer(spec, F64).channels, generator=g).double()
    parents, at, before = [], tokens, 1
    for width in widths:
        parents.append(torch.randint(0, before, (width,), generator=g))
        before = width
    # What each beam reads, by walking its whole row.
    mixer, paths, want = Mixer(spec, F64), [torch.arange(tokens)], []
    if tokens:
        q, k, v = mixer.parts(whole(raw[:tokens], mixer.weight, None))
        fed = gates.pick(spec, slice(0, tokens))
        _, state = CpuRecurrent().prefill(spec, q, k, v, fed.log_decay, fed.beta, spec.empty_state(F64))
    else:
        state = spec.empty_state(F64)
    states = [state]
    for its in parents:
        paths = [torch.cat((paths[p], torch.tensor([at + b]))) for b, p in enumerate(its.tolist())]
        new, outs = [], []
        for b, p in enumerate(its.tolist()):
            q, k, v = (x[-1:] for x in mixer.parts(whole(raw[paths[b]], mixer.weight, None)))
            one = gates.pick(spec, paths[b][-1:])
            fed = type(one)(q, k, v, one.log_decay, one.beta)
            new.append(transition(spec, fed, 0, states[p]))
            outs.append(read(spec, fed, 0, new[-1]))
        states, at = new, at + len(its)
        want.append(torch.stack(outs))
    for dtype, limit in TOLERANCE.items():
        for got, baseline, right in zip(
            *searched(spec, dtype, tokens, raw, gates, parents), want, strict=True
        ):
            assert error(got, right) <= limit
            assert error(baseline, right) <= limit


def searched(
    spec: RecurrentSpec, dtype: torch.dtype, tokens: int, raw: Tensor, gates: object, parents: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """What beams by records read at each depth, and what beams with states and windows of their own read."""
    mixer, kernel, fed = Mixer(spec, dtype), CpuRecurrent(), gates.to(dtype)  # type: ignore[attr-defined]
    raw = raw.to(dtype)
    layout = RecurrentLayout(
        1,
        *(spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim, spec.decay_shape),
        taps=4,
        channels=mixer.channels,
        key_dtype=dtype,
        row_dtype=dtype,
        state_dtype=dtype,
    )
    widths = [len(its) for its in parents]
    records = RecordPool(layout, 10_000_000).reserve(widths)
    assert records is not None
    y, rows = convolve_prompt(raw[:tokens], mixer.weight, None, empty_rows(4, mixer.channels, dtype))
    some = fed.pick(spec, slice(0, tokens))
    _, state = kernel.prefill(spec, *mixer.parts(y), some.log_decay, some.beta, spec.empty_state(dtype))
    ancestors, materialised = Ancestors(len(widths), max(widths)), MaterialisedBeams(spec, state, rows)
    outs, baseline, at = [], [], tokens
    for depth, its in enumerate(parents, start=1):
        anc, x = ancestors.fork(its), raw[at : at + len(its)]
        some = fed.pick(spec, slice(at, at + len(its)))
        layer = records.layer(0)
        y = convolve_beams(x, mixer.weight, None, rows, layer.rows, layer.starts, anc)
        records.write_rows(0, depth, x)
        q, k, v = mixer.parts(y)
        out, updates = kernel.beams(spec, q, k, v, some.log_decay, some.beta, state, layer, anc)
        records.write(0, depth, k, updates, None if spec.constant_decay else some.log_decay)
        outs.append(out)
        materialised.fork(its)
        y = materialised.convolve(x, mixer.weight, None)
        baseline.append(materialised.step(*mixer.parts(y), some.log_decay, some.beta))
        at += len(its)
    assert records.moved_bytes == 0
    assert records.written_bytes == records.nbytes.total
    return outs, baseline


def test_another_slot_is_another_answer() -> None:
    weight, rows, own = draw(3, 4, seed=1), draw(3, 3, seed=2), draw(10, 3, seed=3)
    x, anc = draw(5, 3, seed=4), torch.tensor([[b, b] for b in range(5)], dtype=torch.int32)
    right = convolve_beams(x, weight, None, rows, own, (0, 5), anc)
    anc[2, 0] = 3
    wrong = convolve_beams(x, weight, None, rows, own, (0, 5), anc)
    assert (right == wrong).all(1).tolist() == [b != 2 for b in range(5)]


def test_arguments_that_do_not_fit_are_refused() -> None:
    good = {
        "x": draw(5, 3, seed=4),
        "weight": draw(3, 4, seed=1),
        "bias": None,
        "prompt": draw(3, 3, seed=2),
        "own": draw(10, 3, seed=3),
        "starts": (0, 5),
        "anc": torch.zeros(5, 2, dtype=torch.int32),
    }

    def refused(match: str, **fields: object) -> None:
        with pytest.raises(ValueError, match=match):
            convolve_beams(**{**good, **fields})  # type: ignore[arg-type]

    refused("weight", weight=draw(2, 4, seed=1))
    refused("rows: ", prompt=draw(2, 3, seed=2))
    refused("rows: ", prompt=draw(3, 3, seed=2).float())
    refused("bias", bias=draw(2, seed=2))
    refused("own", own=draw(10, 2, seed=2))
    refused("anc: torch.int64", anc=torch.zeros(5, 2, dtype=torch.int64))
    refused("anc: depth 3", anc=torch.zeros(5, 3, dtype=torch.int32))
