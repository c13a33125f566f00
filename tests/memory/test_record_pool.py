"""Records and prompt states: exact bytes, no overlap, everything joins again after any order of releases."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from relaygr.core.units import MIB
from relaygr.generation.ancestors import Ancestors
from relaygr.memory.records import BeamRecords, RecordPool
from relaygr.memory.recurrent import PromptState, RecurrentLayout, index_bytes

SMALL = RecurrentLayout(
    layers=2,
    key_heads=1,
    value_heads=2,
    key_dim=3,
    value_dim=5,
    decay_shape=(2,),
    taps=4,
    channels=7,
    key_dtype=torch.bfloat16,
    row_dtype=torch.float16,
)
# A layer of a large hybrid model: 16 key heads, 32 value heads, 128 x 128, convolution over q, k and v.
LARGE = RecurrentLayout(
    layers=1,
    key_heads=16,
    value_heads=32,
    key_dim=128,
    value_dim=128,
    decay_shape=(32,),
    taps=4,
    channels=2 * 16 * 128 + 32 * 128,
)


def filled(records: BeamRecords, layer: int, depth: int, stamp: float) -> None:
    """Write all slots of a layer and depth with one number."""
    parts, width = records.layer(layer), records.widths[depth - 1]
    keys, updates, decays, rows = (
        torch.full((width, *part.shape[1:]), stamp, dtype=part.dtype)
        for part in (parts.keys, parts.updates, parts.log_decay, parts.rows)
        if part is not None
    )
    records.write(layer, depth, keys, updates, decays)
    records.write_rows(layer, depth, rows)


def all_parts(records: BeamRecords, layer: int) -> list[torch.Tensor]:
    its = records.layer(layer)
    assert its.log_decay is not None
    return [its.keys, its.updates, its.log_decay, its.rows]


@pytest.mark.parametrize("width", [64, 128, 256, 512])
def test_measured_bytes_follow_the_formula(width: int) -> None:
    """W Hv dk dv 4 + W (Kc - 1) Cc ec with a state each; Hv dk dv 4 + W T (Hk dk + Hv dv + Hv) eb +
    (Kc - 1 + W T) Cc ec with records. Measured is the storage of the tensors themselves."""
    rounds, heads, dim, channels = 2, 32, 128, 8192
    prompt = PromptState(LARGE)
    pool = RecordPool(LARGE, LARGE.slot_bytes.total * rounds * width)
    records = pool.reserve((width,) * rounds)
    assert records is not None
    keys, updates, decays, rows = all_parts(records, 0)
    state = prompt.state(0).nbytes + keys.nbytes + updates.nbytes + decays.nbytes
    convolution = prompt.rows(0).nbytes + rows.nbytes
    slots = width * rounds
    assert state == heads * dim * dim * 4 + slots * (16 * dim + heads * dim + heads) * 4
    assert convolution == (3 + slots) * channels * 4
    assert LARGE.request_bytes((width,) * rounds) == (state, convolution)
    assert pool.nbytes + prompt.nbytes.total == state + convolution
    assert sum(buffer.untyped_storage().nbytes() for buffer in (keys, updates, decays, rows)) == pool.nbytes
    alone = LARGE.materialised_bytes(width)
    assert alone == (width * heads * dim * dim * 4, width * 3 * channels * 4)
    assert Ancestors(rounds, width).nbytes == index_bytes(rounds, width) == 4 * slots
    mib = {64: 5.0, 128: 8.0, 256: 14.1, 512: 26.1}
    assert round((state + index_bytes(rounds, width)) / MIB, 1) == mib[width]
    if width == 256:
        assert alone.state == 512 * MIB
        assert alone.convolution == 24 * MIB
        assert alone.state / state > 36
        assert state <= alone.state / 20
        assert convolution / MIB == pytest.approx(16, abs=0.1)
    records.release()


def test_widths_may_differ_between_rounds() -> None:
    pool = RecordPool(SMALL, SMALL.slot_bytes.total * 12)
    records = pool.reserve((2, 5, 3))
    assert records is not None
    assert records.starts == records.layer(0).starts == (0, 2, 7)
    assert records.nbytes.total == pool.used_bytes == pool.bytes_for((2, 5, 3)) == 10 * pool.slot_bytes
    both = SMALL.request_bytes((2, 5, 3))
    assert both.state == SMALL.prompt_bytes.state + records.nbytes.state
    assert both.convolution == SMALL.prompt_bytes.convolution + records.nbytes.convolution
    for layer in range(2):
        for depth in (1, 2, 3):
            filled(records, layer, depth, 10 * layer + depth)
    for layer in range(2):
        for part in all_parts(records, layer):
            want = [10 * layer + d for d, w in enumerate((2, 5, 3), start=1) for _ in range(w)]
            assert part.flatten(1)[:, 0].tolist() == want


def test_types_and_constant_decays_count_apart() -> None:
    assert SMALL.slot_bytes == (2 * (3 * 2 + (10 + 2) * 4), 2 * 7 * 2)
    assert replace(SMALL, decay_shape=(2, 3)).slot_bytes.state == 2 * (3 * 2 + (10 + 6) * 4)
    constant = replace(SMALL, decay_shape=(), taps=1, channels=0)
    assert constant.slot_bytes == (2 * (3 * 2 + 10 * 4), 0)
    assert constant.prompt_bytes == (2 * 2 * 3 * 5 * 4, 0)
    records = RecordPool(constant, 1000).reserve((2,))
    assert records is not None
    assert records.layer(0).log_decay is None
    assert records.layer(1).rows.shape == (2, 0)
    records.write(1, 1, torch.ones(2, 1, 3, dtype=torch.bfloat16), torch.ones(2, 2, 5), None)
    with pytest.raises(ValueError, match="log_decay"):
        records.write(1, 1, torch.ones(2, 1, 3, dtype=torch.bfloat16), torch.ones(2, 2, 5), torch.ones(2, 2))


def test_rewritten_slots_count_as_moved() -> None:
    records = RecordPool(SMALL, 10_000).reserve((2, 3))
    assert records is not None
    for layer in range(2):
        for depth in (1, 2):
            filled(records, layer, depth, 1.0)
    assert (records.written_bytes, records.moved_bytes) == (records.nbytes.total, 0)
    filled(records, 0, 2, 2.0)
    assert records.moved_bytes == 3 * SMALL.slot_bytes.total // 2


def test_what_does_not_fit_is_refused() -> None:
    pool = RecordPool(SMALL, SMALL.slot_bytes.total * 8)
    with pytest.raises(ValueError, match="at least one slot"):
        RecordPool(SMALL, SMALL.slot_bytes.total - 1)
    for widths in ((), (0, 2), (3, -1)):
        with pytest.raises(ValueError, match="widths"):
            pool.reserve(widths)
    records = pool.reserve((3, 4))
    assert records is not None
    assert pool.reserve((2,)) is None
    good = torch.zeros(3, 1, 3, dtype=torch.bfloat16), torch.zeros(3, 2, 5), torch.zeros(3, 2)
    for match, depth, args in (
        ("depth: 0", 0, good),
        ("depth: 3", 3, good),
        ("rows: 4", 1, tuple(torch.cat((x, x[:1])) for x in good)),
        ("keys: torch.float32", 1, (good[0].float(), *good[1:])),
        ("updates", 1, (good[0], good[1][:2], good[2])),
        ("log_decay", 1, (good[0], good[1], good[2][:, :1])),
        ("log_decay", 1, (good[0], good[1], None)),
    ):
        with pytest.raises(ValueError, match=match):
            records.write(0, depth, *args)
    with pytest.raises(ValueError, match="rows"):
        records.write_rows(0, 1, torch.zeros(3, 6, dtype=torch.float16))
    records.release()
    records.release()
    assert records.released
    assert pool.free_bytes == pool.nbytes
    with pytest.raises(RuntimeError, match="after their release"):
        records.layer(0)
    with pytest.raises(RuntimeError, match="after their release"):
        records.write(0, 1, *good)


@pytest.mark.parametrize(
    ("match", "fields"),
    [
        ("layers: 0", {"layers": 0}),
        ("taps: 0", {"taps": 0}),
        ("decay_shape", {"decay_shape": (0,)}),
        ("channels: 0", {"channels": 0}),
        ("channels: 7", {"taps": 1}),
        ("key_dtype", {"key_dtype": torch.int8}),
        ("row_dtype", {"row_dtype": torch.int8}),
        ("state_dtype", {"state_dtype": torch.bfloat16}),
    ],
)
def test_layouts_are_checked(match: str, fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=match):
        replace(SMALL, **fields)


def test_a_prompt_state_is_copied_whole() -> None:
    state = PromptState(SMALL)
    assert state.nbytes == SMALL.prompt_bytes
    state.write(1, torch.ones(2, 3, 5), torch.full((3, 7), 2, dtype=torch.float16))
    state.tokens = 9
    kept = state.copy()
    state.write(1, torch.zeros(2, 3, 5), torch.zeros(3, 7, dtype=torch.float16))
    assert (kept.tokens, float(kept.state(1).sum()), float(kept.rows(1).sum())) == (9, 30, 42)
    assert float(kept.state(0).sum()) == float(state.state(1).sum()) == 0
    for match, args in (
        ("state", (torch.zeros(2, 3, 4), torch.zeros(3, 7, dtype=torch.float16))),
        ("state", (torch.zeros(2, 3, 5).double(), torch.zeros(3, 7, dtype=torch.float16))),
        ("rows", (torch.zeros(2, 3, 5), None)),
        ("rows", (torch.zeros(2, 3, 5), torch.zeros(3, 7))),
    ):
        with pytest.raises(ValueError, match=match):
            state.write(0, *args)
    plain = PromptState(replace(SMALL, taps=1, channels=0))
    plain.write(0, torch.ones(2, 3, 5))
    assert plain.rows(0).shape == (0, 0)
    with pytest.raises(ValueError, match="rows"):
        plain.write(0, torch.ones(2, 3, 5), torch.zeros(0, 0, dtype=torch.float16))


def test_ten_thousand_requests_leave_the_pool_as_it_was() -> None:
    pool, draw = RecordPool(SMALL, SMALL.slot_bytes.total * 2000), random.Random(7)
    storage, live, granted, refused = pool.nbytes, [], 0, 0
    for _ in range(10_000):
        if live and draw.random() < 0.5:
            live.pop(draw.randrange(len(live))).release()
            continue
        widths = draw.choices([1, 7, 50, 64, 128, 256], k=draw.choice([1, 2, 3]))
        records = pool.reserve(widths)
        if records is None:
            assert pool.largest_bytes < pool.bytes_for(widths)
            refused += 1
        else:
            live.append(records)
            granted += 1
        assert pool.used_bytes == sum(x.nbytes.total for x in live)
    assert min(granted, refused) > 200
    for records in live:
        records.release()
    assert (pool.nbytes, pool.free_bytes, pool.largest_bytes) == (storage, storage, storage)


class RecordMachine(RuleBasedStateMachine):
    """The pool against a plain list of who owns which slot, told by what each owner wrote."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.pool = RecordPool(SMALL, SMALL.slot_bytes.total * 24)
        self.live: dict[BeamRecords, int] = {}
        self.stamp = 0

    @rule(target=taken, widths=st.lists(st.integers(1, 9), min_size=1, max_size=3))
    def reserve(self, widths: list[int]) -> BeamRecords | None:
        records = self.pool.reserve(widths)
        if records is None:
            assert self.pool.largest_bytes < self.pool.bytes_for(widths)
            return None
        self.stamp += 1
        for layer in range(2):
            for depth in range(1, len(widths) + 1):
                filled(records, layer, depth, self.stamp)
        self.live[records] = self.stamp
        return records

    @rule(records=consumes(taken))
    def release(self, records: BeamRecords | None) -> None:
        if records is not None:
            records.release()
            self.live.pop(records)

    @invariant()
    def nobody_wrote_over_another(self) -> None:
        for records, stamp in self.live.items():
            for layer in range(2):
                assert all((part == stamp).all() for part in all_parts(records, layer))

    @invariant()
    def the_books_are_exact(self) -> None:
        assert self.pool.used_bytes == sum(x.nbytes.total for x in self.live)
        if not self.live:
            assert self.pool.largest_bytes == self.pool.nbytes


RecordMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestRecordMachine = RecordMachine.TestCase
