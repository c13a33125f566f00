"""One suite over the kernels of linear attention: each must equal matrices written out in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrent_cases import (
    DECAYS,
    F32,
    F64,
    SPECS,
    Forks,
    Search,
    Tokens,
    draw_state,
    draw_tokens,
    error,
    sequential,
)
from torch import Tensor

from relaygr.kernels.cpu import CpuRecurrent
from relaygr.kernels.cpu.chunks import chunk_tokens
from relaygr.kernels.materialised import MaterialisedBeams, ReplayedBeams
from relaygr.kernels.recurrent import RecurrentKernel, RecurrentSpec
from relaygr.kernels.reference import ReferenceRecurrent
from relaygr.memory.records import LayerRecords, RecordPool

KERNELS: dict[str, RecurrentKernel] = {"reference": ReferenceRecurrent(), "cpu": CpuRecurrent()}
TOLERANCE = {F64: 1e-12, F32: 1e-5}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", SPECS)
def test_a_prompt_equals_its_recurrence(name: str, kernel: str) -> None:
    spec = SPECS[name]
    for count in (0, 1, 2, 17, 64, 150):
        for decay in DECAYS:
            g = generator(count)
            tokens, state = draw_tokens(spec, count, g, decay), draw_state(spec, g)
            want, left = sequential(spec, tokens, state)
            for dtype, limit in TOLERANCE.items():
                start = state.to(dtype)
                out, end = KERNELS[kernel].prefill(spec, *tokens.to(dtype).all, start)
                assert out.dtype == end.dtype == dtype
                assert error(out, want) <= limit
                assert error(end, left) <= limit
                assert torch.equal(start, state.to(dtype))  # inputs are left as they are
                assert end.data_ptr() != start.data_ptr()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", SPECS)
def test_a_prompt_may_come_in_parts(name: str, kernel: str) -> None:
    """Also from a state that is not empty."""
    spec, g = SPECS[name], generator(3)
    tokens, state = draw_tokens(spec, 130, g, "mixed"), draw_state(spec, g)
    want, left = sequential(spec, tokens, state)
    for dtype, limit in TOLERANCE.items():
        its, outs = state.to(dtype), []
        for a, b in pairwise((0, 1, 40, 40, 129, 130)):
            part = tokens.pick(spec, slice(a, b)).to(dtype)
            out, its = KERNELS[kernel].prefill(spec, *part.all, its)
            outs.append(out)
        assert error(torch.cat(outs), want) <= limit
        assert error(its, left) <= limit


@pytest.mark.parametrize("name", SPECS)
def test_cuts_at_chunks_change_no_bit(name: str) -> None:
    spec, g = SPECS[name], generator(4)
    size = chunk_tokens(spec)
    tokens, state = draw_tokens(spec, 4 * size + 5, g).to(F32), draw_state(spec, g).float()
    whole, left = CpuRecurrent().prefill(spec, *tokens.all, state)
    for cuts in ((0, size, 4 * size + 5), (0, 2 * size, 4 * size, 4 * size + 5)):
        its, outs = state, []
        for a, b in pairwise(cuts):
            out, its = CpuRecurrent().prefill(spec, *tokens.pick(spec, slice(a, b)).all, its)
            outs.append(out)
        assert torch.equal(torch.cat(outs), whole)
        assert torch.equal(its, left)


@pytest.mark.parametrize("family", ["delta", "kda"])
def test_a_long_prompt_of_full_heads(family: str) -> None:
    spec, g = RecurrentSpec(family, 1, 2, 128, 128), generator(5)  # type: ignore[arg-type]
    tokens = draw_tokens(spec, 1000, g)
    want, left = ReferenceRecurrent().prefill(spec, *tokens.all, spec.empty_state(F64))
    out, state = CpuRecurrent().prefill(spec, *tokens.to(F32).all, spec.empty_state())
    assert error(out, want) <= 1e-5
    assert error(state, left) <= 1e-5


widths = st.lists(st.integers(1, 7), min_size=1, max_size=8).map(tuple)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=15, deadline=None)
@given(widths=widths, seed=st.integers(0, 2**20), decay=st.sampled_from(DECAYS))
def test_records_equal_states(name: str, kernel: str, widths: tuple[int, ...], seed: int, decay: str) -> None:
    """Any fork tree to depth 8, another width at each level, any decays, also ln a = -40."""
    forks = Forks(SPECS[name], widths, seed, decay)
    want = forks.want()
    for dtype, limit in TOLERANCE.items():
        search = forks.search(dtype)
        for got, right in zip(search.run(KERNELS[kernel]), want, strict=True):
            # Values are N(0, 1); a lone beam's k and q may be all but orthogonal.
            assert error(got, right, floor=0.1) <= limit
        assert search.records.moved_bytes == 0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["delta", "kda"])
def test_a_weak_decay_behind_strong_ones_is_not_lost(name: str, kernel: str) -> None:
    """In fp32 the difference of sums of 280 is known to 3e-5 only; sums of what lies between are exact."""
    forks = Forks(SPECS[name], (4,) * 8, 12, "strong")
    forks.tokens[7].log_decay.fill_(-0.01)
    got = forks.search(F32).run(KERNELS[kernel])[7]
    assert error(got, forks.want()[7]) <= 1e-6


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("widths", [(256, 256), (5, 33, 20)], ids=str)
def test_wide_beams_equal_both_baselines(name: str, widths: tuple[int, ...]) -> None:
    spec = replace(SPECS[name], key_dim=32, value_dim=32)
    forks = Forks(spec, widths, 6)
    for dtype, limit in TOLERANCE.items():
        search = forks.search(dtype)
        state = forks.state.to(dtype)
        materialised, replayed = MaterialisedBeams(spec, state), ReplayedBeams(spec, state)
        for tokens, parents in zip(forks.tokens, forks.parents, strict=True):
            got = search.step(KERNELS["cpu"])
            materialised.fork(parents)
            fed = tokens.to(dtype)
            assert error(got, materialised.step(*fed.all)) <= limit
            assert error(got, replayed.step(*fed.all, search.ancestors.index)) <= limit
        assert materialised.state_bytes == widths[-1] * state.nbytes
        assert materialised.moved_bytes == sum(widths) * state.nbytes
        materialised.restart(state)  # its buffers are used again, by fewer beams
        materialised.fork(forks.parents[0][:3])
        few = forks.tokens[0].pick(spec, slice(0, 3)).to(dtype)
        assert error(materialised.step(*few.all), search.outs[0][:3]) <= limit
        assert torch.equal(state, forks.state.to(dtype))


@pytest.mark.parametrize("kernel", KERNELS)
def test_two_tokens_by_hand(kernel: str) -> None:
    """S0 = 2. Token 1: a 0.5, k 1, v 3, beta 0.5. Token 2: a 0.5, k 2, v 1, beta 1, q 1."""
    spec = RecurrentSpec("delta", 1, 1, 1, 1)
    state = torch.full((1, 1, 1), 2.0, dtype=F64)

    def token(q: float, k: float, v: float, beta: float) -> tuple[Tensor, ...]:
        def one(x: float) -> Tensor:
            return torch.tensor([[[x]]], dtype=F64)

        half = torch.tensor([[0.5]], dtype=F64).log()
        return one(q), one(k), one(v), half, torch.tensor([[beta]], dtype=F64)

    empty = torch.zeros(2, 1, 1, dtype=F64)
    records = LayerRecords(empty.clone(), empty.clone(), empty[:, 0].clone(), empty[:, 0], (0, 1))
    first, second = token(1, 1, 3, 0.5), token(1, 2, 1, 1)
    out, update = KERNELS[kernel].beams(spec, *first, state, records, torch.zeros(1, 1, dtype=torch.int32))
    assert out.item() == pytest.approx(2, abs=1e-15)
    assert update.item() == pytest.approx(1, abs=1e-15)
    assert records.log_decay is not None
    records.keys[0], records.updates[0], records.log_decay[0] = first[1][0], update[0], first[3][0]
    out, update = KERNELS[kernel].beams(spec, *second, state, records, torch.zeros(1, 2, dtype=torch.int32))
    assert out.item() == pytest.approx(-1, abs=1e-15)
    assert update.item() == pytest.approx(-1, abs=1e-15)
    both = [torch.cat(pair) for pair in zip(first, second, strict=True)]
    read, left = KERNELS[kernel].prefill(spec, *both, state)
    assert read.flatten().tolist() == pytest.approx([2, -1], abs=1e-15)
    assert left.item() == pytest.approx(-1, abs=1e-15)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", SPECS)
def test_another_slot_is_another_answer(name: str, kernel: str) -> None:
    """The index is what is read: one wrong entry changes that beam, and no other."""
    forks = Forks(SPECS[name], (9, 9, 9), 7)
    want = forks.search(F32).run(KERNELS[kernel])[2]
    parent = int(forks.parents[2][4])
    for depth, true in ((1, int(forks.parents[1][parent])), (2, parent)):
        its = forks.search(F32)
        for _ in range(2):
            its.step(KERNELS[kernel])
        got = its.step(KERNELS[kernel], corrupt=(4, depth, (true + 1) % 9))
        same = (got == want).flatten(1).all(1)
        assert same.tolist() == [b != 4 for b in range(9)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", SPECS)
def test_requests_side_by_side_equal_requests_alone(name: str, threads: int) -> None:
    """Bit for bit, whatever the widths of the others and wherever their records lie in the pool."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        kernel = KERNELS["cpu"]
        every = [
            Forks(SPECS[name], widths, seed)
            for seed, widths in enumerate([(40, 40), (3, 17), (40, 40), (130, 1)])
        ]
        alone = [forks.search(F32).run(kernel) for forks in every]
        layout = every[0].pool(F32).layout
        pool = RecordPool(layout, layout.slot_bytes.total * 400)
        together = [Search(forks, F32, pool) for forks in every]
        for _ in range(2):
            for search in together:
                search.step(kernel)
        for search, want in zip(together, alone, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(search.outs, want, strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_may_be_recorded_in_half(kernel: str) -> None:
    forks = Forks(SPECS["delta"], (8, 8, 8), 8)
    for key_dtype, limit in ((torch.float16, 1e-3), (torch.bfloat16, 1e-2)):
        got = forks.search(F32, key_dtype).run(KERNELS[kernel])
        errors = [error(a, b) for a, b in zip(got, forks.want(), strict=True)]
        assert errors[0] <= 1e-5
        assert max(errors) <= limit


@pytest.mark.parametrize("kernel", KERNELS)
def test_half_inputs_are_summed_in_the_state_s_precision(kernel: str) -> None:
    spec, g = SPECS["kda"], generator(9)
    tokens = draw_tokens(spec, 70, g).to(torch.bfloat16)
    want, left = sequential(spec, tokens.to(F64), torch.zeros(spec.state_shape, dtype=F64))
    out, state = KERNELS[kernel].prefill(spec, *tokens.all, spec.empty_state())
    assert error(out, want) <= 1e-5
    assert error(state, left) <= 1e-5


def test_no_beams_are_no_rows() -> None:
    forks = Forks(SPECS["delta"], (3, 3), 1)
    empty = forks.tokens[0].pick(forks.spec, slice(0, 0)).to(F32)
    for kernel in KERNELS.values():
        records = forks.search(F32).records.layer(0)
        none = torch.zeros(0, 1, dtype=torch.int32)
        out, updates = kernel.beams(forks.spec, *empty.all, forks.state.float(), records, none)
        assert out.shape == updates.shape == (0, 4, 8)


@pytest.mark.parametrize("kernel", KERNELS)
def test_arguments_that_do_not_fit_are_refused(kernel: str) -> None:
    forks = Forks(SPECS["delta"], (3, 3), 1)
    good = forks.tokens[0].to(F32)
    state, records = forks.state.float(), forks.search(F32).records.layer(0)
    index = torch.zeros(3, 1, dtype=torch.int32)

    def refused(match: str, spec: RecurrentSpec = forks.spec, **fields: object) -> None:
        tokens = replace(good, **{k: v for k, v in fields.items() if k in Tokens.__dataclass_fields__})
        with pytest.raises(ValueError, match=match):
            KERNELS[kernel].beams(
                spec,
                *tokens.all,
                fields.get("state", state),  # type: ignore[arg-type]
                fields.get("records", records),  # type: ignore[arg-type]
                fields.get("anc", index),  # type: ignore[arg-type]
            )

    refused("beta: delta needs", beta=None)
    refused("beta: decayed has none", spec=SPECS["decayed"])
    refused("k: ", k=good.k[:2])
    refused("log_decay", spec=SPECS["kda"])
    refused("state: torch.float16", state=state.half())
    refused("state", state=state[:1])
    refused("anc: torch.int64", anc=index.long())
    refused("anc: depth 3", anc=torch.zeros(3, 3, dtype=torch.int32))
    refused("records.keys", records=replace(records, keys=records.keys[:, :1]))
    refused("records.updates", records=replace(records, updates=records.updates[:2]))
    refused("records.log_decay", records=replace(records, log_decay=None))


@pytest.mark.parametrize(
    ("match", "fields"),
    [
        ("family: 'other'", {"family": "other"}),
        ("key_dim: 0", {"key_dim": 0}),
        ("multiple of 3", {"key_heads": 3}),
        ("decay_heads: 2", {"decay_heads": 2}),
        ("decay_heads: 3", {"family": "kda", "decay_heads": 3}),
        ("constant_decay: kda", {"family": "kda", "constant_decay": True}),
    ],
)
def test_shapes_that_cannot_be_are_refused(match: str, fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=match):
        replace(SPECS["delta"], **fields)


def test_baselines_refuse_what_does_not_fit() -> None:
    forks = Forks(SPECS["delta"], (3, 3), 1)
    tokens = forks.tokens[0].to(F32)
    for make in (MaterialisedBeams, ReplayedBeams):
        with pytest.raises(ValueError, match="state"):
            make(forks.spec, forks.state[:1])
    materialised = MaterialisedBeams(forks.spec, forks.state.float())
    with pytest.raises(ValueError, match="3 rows, 1 beams"):
        materialised.step(*tokens.all)
    with pytest.raises(RuntimeError, match="fork it before"):
        materialised.step(*tokens.pick(forks.spec, slice(0, 1)).all)
    with pytest.raises(ValueError, match="rows of 1 beams"):
        materialised.convolve(torch.zeros(1, 4), torch.zeros(4, 4), None)
    with pytest.raises(ValueError, match="anc"):
        ReplayedBeams(forks.spec, forks.state.float()).step(*tokens.all, torch.zeros(3, 2, dtype=torch.int32))
