"""Host formats against a slow one: bounds, the same bytes again and again, and rows at the edges."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relaygr.memory import format as contract
from relaygr.memory import formats as module
from relaygr.memory.format import HostFormat
from relaygr.memory.formats import BF16, FP8, FP8_PAGE, INT8, INT8_PAGE, SAME, Scaled, formats, host_format
from relaygr.memory.layout import KvLayout

FP32, BF, FP16 = torch.float32, torch.bfloat16, torch.float16
DTYPES = (FP32, BF, FP16)
assert FP8 is not None
assert FP8_PAGE is not None
ROW_FORMATS = (SAME, BF16, INT8, FP8)
SCALED = (INT8, FP8)
TINY = 2.0**-126


def round_trip(form: HostFormat, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Host rows, and what they are read as; rows [..., D]."""
    shape = rows.reshape(1, 1, -1, rows.shape[-1])
    stored = form.empty(tuple(shape.shape[:3]), shape.shape[3], rows.dtype)
    form.encode(shape, stored)
    found = torch.full_like(shape, 7.0)
    form.decode(stored, found)
    return stored, found.view(rows.shape)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def bf16(value: float) -> float:
    return float(torch.tensor(value, dtype=FP32).to(BF))


def in_type(value: float, dtype: torch.dtype) -> float:
    """Rounded to `dtype`, never to an infinity."""
    largest = torch.finfo(dtype).max
    return float(torch.tensor(min(max(value, -largest), largest), dtype=torch.float64).to(FP32).to(dtype))


def slow_int8(row: list[float], dtype: torch.dtype) -> list[float]:
    """One row through int8, value by value."""
    top = max(map(abs, row))
    scale = bf16(float(torch.tensor(top, dtype=FP32) / 127))
    if scale < TINY:
        return [0.0] * len(row)
    quanta = [max(-127, min(127, round(float(torch.tensor(v, dtype=FP32) / scale)))) for v in row]
    return [in_type(quantum * scale, dtype) for quantum in quanta]


def rows_of(seed: int, dtype: torch.dtype, dim: int, scale: float, count: int = 40) -> Tensor:
    """Rows of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn((count, dim), generator=generator, dtype=torch.float64)
    rows *= torch.exp(3 * torch.randn((count, 1), generator=generator, dtype=torch.float64)) * scale
    largest = torch.finfo(dtype).max
    return rows.clamp(-largest, largest).to(dtype)


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from(DTYPES),
    st.integers(1, 9),
    st.sampled_from([1.0, 1e-3, 1e3, 1e-30, 1e30, 6e-5]),
)
def test_int8_is_what_the_slow_one_says(seed: int, dtype: torch.dtype, dim: int, scale: float) -> None:
    rows = rows_of(seed, dtype, dim, scale, count=6)
    _, found = round_trip(INT8, rows)
    wanted = [slow_int8(row, dtype) for row in rows.tolist()]
    assert found.tolist() == wanted


def bound(form: HostFormat, rows: Tensor) -> Tensor:
    """How far each value may be from where it was, [n, D]."""
    exact, top = rows.double().abs(), rows.double().abs().amax(-1, keepdim=True)
    eps = torch.finfo(rows.dtype).eps
    smallest = torch.finfo(rows.dtype).tiny * eps
    if form is SAME:
        return torch.zeros_like(exact)
    if form is BF16:  # half a unit in the last place; below the normal numbers, of the smallest one
        return exact * 2.0**-8 + 2.0**-134
    # The largest value may be clipped, by the rounding of the scale; what is read is rounded to the dtype.
    clipped = top * 2.0**-8 + exact * eps + smallest
    if form is INT8:
        return torch.maximum(clipped, top / 127 * (0.5 + 2.0**-8) + exact * eps + smallest) + 127 * TINY
    assert form is FP8
    step = torch.maximum(exact * 2.0**-4, top / 448 * 2.0**-10)
    return torch.maximum(clipped, step * (1 + 2.0**-7) + exact * eps + smallest) + 448 * TINY


@pytest.mark.parametrize("form", ROW_FORMATS, ids=lambda form: form.name)
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from(DTYPES),
    st.integers(1, 70),
    st.sampled_from([1.0, 1e-3, 1e3, 1e-30, 1e30, 1e-38, 6e-5, 6e4]),
)
def test_round_trips_are_close_and_happen_once(
    form: HostFormat, seed: int, dtype: torch.dtype, dim: int, scale: float
) -> None:
    rows = rows_of(seed, dtype, dim, scale)
    stored, found = round_trip(form, rows)
    assert bool(found.isfinite().all())
    assert bool(((found.double() - rows.double()).abs() <= bound(form, rows)).all())
    again, unchanged = round_trip(form, found)
    # Below its normal numbers float16 has fewer values than fp8: several bytes are read as the same one.
    assert same_bytes(again, stored) or (form is FP8 and dtype == FP16)
    assert torch.equal(unchanged, found)


def all_tops(dtype: torch.dtype) -> Tensor:
    """Every positive finite number of a 16-bit dtype; of float32 those that bf16 and its neighbours give."""
    bits = torch.arange(1, 1 << 15, dtype=torch.int32)
    if dtype == FP32:
        near = (bits << 16)[:, None] + torch.tensor([-1, 0, 1, 0x7FFF, 0x8000, 0x8001])
        values = near.flatten().to(torch.int32).view(FP32)
    else:
        values = bits.to(torch.int16).view(dtype)
    return values[values.isfinite() & (values > 0)]


@pytest.mark.parametrize("form", SCALED, ids=lambda form: form.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_scale_comes_back(form: Scaled, dtype: torch.dtype) -> None:
    """The largest value alone decides about the scale; all of them are tried, with others beside."""
    tops = all_tops(dtype)
    shares = torch.tensor([1.0, -1.0, 0.5, 64.5 / 127, -0.0078, 3.4 / 127, 1e-3])
    rows = (tops[:, None].double() * shares).to(dtype)
    stored, found = round_trip(form, rows)
    assert bool(found.isfinite().all())
    again, unchanged = round_trip(form, found)
    assert same_bytes(again, stored) or (form is FP8 and dtype == FP16)
    assert torch.equal(unchanged, found)
    assert bool(((found.double() - rows.double()).abs() <= bound(form, rows)).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_of_every_scale_comes_back(dtype: torch.dtype) -> None:
    """Rows that hold all 255 values of int8, for 128 scales that follow one another."""
    tops = all_tops(dtype)
    middle = tops[(tops >= 1) & (tops < 2)][:: max(len(tops[(tops >= 1) & (tops < 2)]) // 128, 1)]
    rows = (middle[:, None].double() * torch.arange(-127, 128).double() / 127).to(dtype)
    stored, found = round_trip(INT8, rows)
    assert len(stored[0, 0, 0, :-2].unique()) >= 250
    again, _ = round_trip(INT8, found)
    assert same_bytes(again, stored)


@pytest.mark.parametrize("form", ROW_FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_at_the_edges(form: HostFormat, dtype: torch.dtype) -> None:
    largest, smallest = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    zeros = torch.zeros(1, 5, dtype=dtype)
    for rows in (zeros, -zeros, torch.full((1, 5), smallest, dtype=dtype)):
        _, found = round_trip(form, rows)
        assert bool(((found.double() - rows.double()).abs() <= bound(form, rows)).all())
        if not rows.any():
            assert not found.any()
    full = torch.tensor([[largest, -largest, 0.0, largest / 2, 1.0]], dtype=dtype)
    _, found = round_trip(form, full)
    assert bool(found.isfinite().all())
    assert bool(((found.double() - full.double()).abs() <= bound(form, full)).all())


def test_float16_scales_would_not_do() -> None:
    rows = torch.tensor([[1e-30, -5e-31], [1e30, 3e29]])
    _, found = round_trip(INT8, rows)
    assert torch.allclose(found, rows, rtol=6e-3, atol=0)
    assert float((rows[0, 0] / 127).half()) == 0.0
    assert math.isinf(float((rows[1, 0] / 127).half()))


@pytest.mark.parametrize("form", ROW_FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_visible_and_in_its_row(
    form: HostFormat, dtype: torch.dtype, bad: float
) -> None:
    rows = rows_of(1, dtype, 6, 1.0)
    _, whole = round_trip(form, rows)
    rows[3, 2] = bad
    stored, found = round_trip(form, rows)
    others = torch.arange(len(rows)) != 3
    assert torch.equal(found[others], whole[others])
    if form in SCALED:
        assert bool(found[3].isnan().all())
    else:
        assert torch.equal(found[3].isfinite(), torch.arange(6) != 2)
        assert (math.isnan(bad) and bool(found[3, 2].isnan())) or float(found[3, 2]) == bad
    again, _ = round_trip(form, found)
    assert same_bytes(again, stored)


@pytest.mark.parametrize("form", [INT8_PAGE, FP8_PAGE], ids=lambda form: form.name)
def test_a_scale_of_a_page_is_rounded_anew_when_a_token_is_added(form: Scaled) -> None:
    assert form.tokens_per_row(32) == 32
    page = torch.randn((32, 8), generator=torch.Generator().manual_seed(2))
    page[20:] = 0
    _, once = round_trip(form, page.view(1, -1))
    more = once.view(32, 8).clone()
    more[20:] = 1.37 * more.abs().max()
    _, twice = round_trip(form, more.view(1, -1))
    assert not torch.equal(twice.view(32, 8)[:20], once.view(32, 8)[:20])
    with pytest.raises(ValueError, match="share their scales"):
        form.row_bytes(layout(FP32), 0)


def test_groups_cover_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(3, FP32, 6, 1.0, count=2 * 3 * 17).view(2, 3, 17, 6)
    whole = []
    for size in (contract._GROUP_BYTES, 4 * 3 * 6 * 5):  # five rows of all heads
        monkeypatch.setattr(contract, "_GROUP_BYTES", size)
        stored = INT8.empty((2, 3, 17), 6, FP32)
        INT8.encode(rows, stored)
        found = torch.empty_like(rows)
        INT8.decode(stored, found)
        whole.append((stored, found))
    assert len(list(contract.groups(rows, rows))) == 2 * 4
    assert same_bytes(whole[0][0], whole[1][0])
    assert torch.equal(whole[0][1], whole[1][1])


def layout(dtype: torch.dtype) -> KvLayout:
    return KvLayout(layers=4, heads=4, qk_dim=64, v_dim=64, dtype=dtype, page_tokens=32)


@pytest.mark.parametrize(
    ("form", "row", "page_ratio"),
    [(SAME, 2048, 1), (BF16, 1024, 2), (INT8, 528, 3.88), (FP8, 528, 3.88), (INT8_PAGE, None, 4.0)],
    ids=lambda value: getattr(value, "name", None),
)
def test_m38_sizes_scales_included(form: HostFormat, row: int | None, page_ratio: float) -> None:
    shape = layout(FP32)
    assert shape.page_bytes / form.page_bytes(shape) == pytest.approx(page_ratio, abs=0.01)
    if row is not None:
        assert form.row_bytes(shape, 0) == row
        assert form.token_bytes(shape) == 4 * row
        assert form.page_bytes(shape) == 32 * form.token_bytes(shape)
        tensors = [form.empty((4, 4, 10), dim, FP32) for dim in (64, 64)]
        assert sum(tensor.nbytes for tensor in tensors) == 10 * form.token_bytes(shape)
        with pytest.raises(ValueError, match="layer: 4"):
            form.row_bytes(shape, 4)


def ids() -> Iterator[str]:
    for dtype in (*DTYPES, torch.float64):
        for form in formats(dtype):
            yield form.layout_id(layout(dtype))


def test_layouts_name_the_format() -> None:
    found = list(ids())
    assert len(set(found)) == len(found)
    assert SAME.layout_id(layout(FP32)) == layout(FP32).layout_id


def test_formats_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [host_format(name, FP32) for name in ("same", "bf16", "int8", "fp8")] == [*ROW_FORMATS]
    assert host_format("bf16", BF) is SAME
    assert host_format("bf16", FP16) is BF16
    assert host_format("same", torch.float64) is SAME
    for name in ("bf16", "int8", "fp8"):
        with pytest.raises(ValueError, match="at most 32 bits"):
            host_format(name, torch.float64)
    with pytest.raises(ValueError, match="must be same"):
        host_format("int8_page", FP32)
    monkeypatch.setattr(module, "FP8", None)
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        host_format("fp8", FP32)
    with pytest.raises(ValueError, match="at most 32 bits"):
        INT8.width_bytes(8, torch.float64)
    assert [one.name for one in formats(torch.float64)] == ["same"]
    assert [one.name for one in formats(BF)] == ["same", "int8", "int8_page", "fp8_page"]
