"""States between the tiers in formats that round: once, checked, and counted by the bytes that move."""

from __future__ import annotations

import random
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_transfer import CHUNK, FAR, PAGE, PAGES, Tiers, ref

from relaygr.cache.lease import ReadLease
from relaygr.cache.tiered import TieredBooks
from relaygr.core.state import Hit, Miss, Ref
from relaygr.engine.transfer import Carrier, Loading, Mover, Storing
from relaygr.memory.format import HostFormat
from relaygr.memory.formats import BF16, FP8, INT8
from relaygr.memory.host import HostPool

ROUNDED = tuple(form for form in (BF16, INT8, FP8) if form is not None)
NAMES = [form.name for form in ROUNDED]
each_format = pytest.mark.parametrize("form", ROUNDED, ids=NAMES)


class Rounding(Tiers):
    """`Tiers` whose host memory has a format; rows are ordinary numbers.

    `expect` knows how many tokens of a user came back from host memory: `came_back`.
    """

    def __init__(self, form: HostFormat, share: float = 1.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        layout = self.layout
        self.books = TieredBooks(
            PAGES,
            PAGE,
            layout.page_bytes,
            1.0,
            host_bytes=40 * CHUNK * form.token_bytes(layout),
            host_token_bytes=form.token_bytes(layout),
            host_rounds=True,
            run_chunk_tokens=CHUNK,
            layout_id=form.layout_id(layout),
        )
        self.form, self.came_back = form, dict.fromkeys("abcdefu", 0)
        self.host = HostPool(layout, self.books.host_tokens, form)
        self.carrier = Carrier(self.books, Mover(self.pool, self.host, share))

    def exact(self, user: str, layer: int, dim: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{user} {layer} {dim}".encode()))
        return torch.randn((64, 3, dim), generator=generator).to(self.layout.dtype)

    def rows(self, user: str, layer: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = []
        for dim in (5, 2):
            rows = self.exact(user, layer, dim)
            through = rows[: self.came_back[user]].transpose(0, 1).clone()[None]  # [1, H, n, dim]
            stored = self.form.empty(tuple(through.shape[:3]), dim, self.layout.dtype)
            self.form.encode(through, stored)
            self.form.decode(stored, through)
            made.append(torch.cat([through[0].transpose(0, 1), rows[self.came_back[user] :]])[:tokens])
        return made[0], made[1]

    def bring(self, wanted: Ref, tokens: int, budget_bytes: int) -> None:
        assert self.load(wanted, tokens, budget_bytes)
        self.came_back[wanted.user] = max(self.came_back[wanted.user], tokens)

    def marked(self, wanted: Ref) -> int:
        lease = self.books.lease(wanted, wanted.tokens, "reader", 0.0, FAR)
        assert isinstance(lease, ReadLease)
        lease.release()
        return lease.rounded_tokens


@each_format
@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from([torch.float32, torch.float16]), st.sampled_from([0.0, 0.1, 1.0])
)
def test_states_are_rounded_once_however_often_they_move(
    form: HostFormat, seed: int, dtype: torch.dtype, share: float
) -> None:
    """To and fro at random, with tokens computed in between: bit by bit what one trip makes of the rows."""
    rng, tiers = random.Random(seed), Rounding(form, share, dtype)
    budgets = [1, 3 * tiers.layout.page_bytes, 1 << 30]
    lengths: dict[str, int] = {}
    for _ in range(25):
        user = rng.choice("abcdef")
        lengths[user] = max(1, min(60, lengths.get(user, 0) + rng.randint(0, 9)))
        wanted = ref(lengths[user], user)
        answer = tiers.books.lookup(wanted)
        if isinstance(answer, Hit) and answer.host:
            tiers.bring(wanted, answer.host, rng.choice(budgets))
            assert tiers.marked(ref(answer.host, user)) == answer.host
        if tiers.books.lookup(wanted) != Hit(0, wanted.tokens, 0, 0, wanted.tokens):
            tiers.compute(wanted)
        tiers.expect(wanted)
        assert tiers.marked(wanted) == tiers.came_back[user]
        if rng.random() < 0.7:
            assert tiers.spill(wanted, rng.choice(budgets))
    tiers.books.audit()


@each_format
def test_checksums_are_of_the_bytes_in_the_host(form: HostFormat) -> None:
    tiers, wanted = Rounding(form), ref(14)
    tiers.compute(wanted)
    transfer = tiers.carrier.spill(wanted, 0.0)
    assert isinstance(transfer, Storing)
    assert tiers.run(transfer, tiers.layout.page_bytes)
    assert [check.page for check in transfer.sums] == [0, 1, 2, 3]
    assert [check.crc for check in transfer.sums] == [
        tiers.host.crc(page * PAGE, min(PAGE, 14 - page * PAGE)) for page in range(4)
    ]


@each_format
@pytest.mark.parametrize("page", range(4))
@pytest.mark.parametrize("where", [0, -1])  # a value, or its scale
def test_damaged_bytes_are_never_used(form: HostFormat, page: int, where: int) -> None:
    tiers, wanted = Rounding(form), ref(14)
    tiers.compute(wanted)
    assert tiers.spill(wanted)
    tiers.host.values[1, 2, page * PAGE].view(torch.uint8)[where] ^= 4
    transfer = tiers.carrier.load(wanted, 14, 0.0, FAR)
    assert isinstance(transfer, Loading)
    assert not tiers.run(transfer, tiers.layout.page_bytes)
    assert transfer.damaged
    assert tiers.books.lookup(wanted) == Miss()
    assert tiers.full()


@each_format
def test_bytes_are_counted_as_they_lie_in_the_host(form: HostFormat) -> None:
    tiers, wanted = Rounding(form), ref(30)
    tiers.compute(wanted)
    assert tiers.spill(wanted)
    tiers.bring(wanted, 30, 1 << 30)
    moved = 30 * form.token_bytes(tiers.layout)
    assert moved < 30 * tiers.layout.token_bytes
    assert (tiers.carrier.stored_bytes, tiers.carrier.loaded_bytes) == (moved, moved)
    tiers.expect(wanted)
