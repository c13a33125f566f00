"""States between the tiers with their bytes: exact, in bounded parts, checked, and cancelled at any stage."""

import random
import struct
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.cache.digests import DigestChain
from relaygr.cache.interface import Reason, Refused
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.cache.tiered import TieredBooks
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Hit, Miss, Ref
from relaygr.engine.residency import ResidencyDesk
from relaygr.engine.transfer import Carrier, Loading, Mover, Storing, Transfer, sample
from relaygr.memory.host import HostPool
from relaygr.memory.layout import DTYPES, KvLayout
from relaygr.memory.pool import PagePool

FAR = 1e9
PAGE, CHUNK, PAGES = 4, 8, 64


def ref(tokens: int, user: str = "u") -> Ref:
    chain = DigestChain(Tenant("t"), Fingerprint(bytes(16)), 1, UserId(user), 0, PAGE, 8)
    chain.extend(struct.pack(f"<{tokens}q", *range(tokens)))
    return chain.ref()


class Tiers:
    """Books, bytes and a carrier; rows of a user are random bits that depend on the user and the token."""

    def __init__(self, dtype: torch.dtype = torch.float32, share: float = 1.0, chunks: int = 40) -> None:
        self.layout = KvLayout(2, 3, 5, 2, dtype, PAGE)
        self.books = TieredBooks(
            PAGES,
            PAGE,
            self.layout.page_bytes,
            1.0,
            host_bytes=chunks * CHUNK * self.layout.token_bytes,
            run_chunk_tokens=CHUNK,
            layout_id=self.layout.layout_id,
        )
        self.pool = PagePool(self.layout, pages=PAGES)
        self.host = HostPool(self.layout, self.books.host_tokens)
        for tensor in (self.pool.keys, self.pool.values, self.host.keys, self.host.values):
            tensor.fill_(7.0)  # rubbish wherever nothing was written
        self.carrier = Carrier(self.books, Mover(self.pool, self.host, share))

    def rows(self, user: str, layer: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = []
        for dim in (5, 2):
            generator = torch.Generator().manual_seed(zlib.crc32(f"{user} {layer} {dim}".encode()))
            bits = torch.randint(0, 256, (64, 3, dim * self.layout.dtype.itemsize), generator=generator)
            made.append(bits.to(torch.uint8).view(self.layout.dtype)[:tokens])
        return made[0], made[1]

    def compute(self, wanted: Ref) -> int:
        """What the model would do: write what is missing; returns the tokens that were."""
        lease = self.books.append(wanted, "writer", 0.0, FAR)
        assert isinstance(lease, WriteLease), lease
        self.pool.zero(lease.fresh)
        for copy in lease.copies:
            self.pool.copy(copy.src, copy.dst, copy.tokens)
        start = lease.reused_tokens
        for layer in range(2):
            k, v = self.rows(wanted.user, layer, wanted.tokens)
            self.pool.write(layer, lease.pages, start, k[start:], v[start:])
        assert lease.publish(0.0)
        return wanted.tokens - start

    def expect(self, wanted: Ref) -> None:
        """All of `wanted` is on the device, bit by bit, with zeros behind."""
        lease = self.books.lease(wanted, wanted.tokens, "reader", 0.0, FAR)
        assert isinstance(lease, ReadLease), lease
        for layer in range(2):
            read = self.pool.read(layer, lease.pages, wanted.tokens, lease.clean_tail)
            for got, want in zip(read, self.rows(wanted.user, layer, wanted.tokens), strict=True):
                same = got[:, : wanted.tokens].transpose(0, 1).contiguous().view(torch.uint8)
                assert torch.equal(same, want.contiguous().view(torch.uint8))
                assert not got[:, wanted.tokens :].any()
        lease.release()

    def run(self, transfer: Transfer | Refused, budget_bytes: int = 1 << 30) -> bool:
        assert not isinstance(transfer, Refused), transfer
        while not self.carrier.step(transfer, budget_bytes):
            pass
        return self.carrier.land(transfer)

    def spill(self, wanted: Ref, budget_bytes: int = 1 << 30) -> bool:
        return self.run(self.carrier.spill(wanted, 0.0), budget_bytes)

    def load(self, wanted: Ref, tokens: int, budget_bytes: int = 1 << 30) -> bool:
        return self.run(self.carrier.load(wanted, tokens, 0.0, FAR), budget_bytes)

    def full(self) -> bool:
        stats = self.books.stats()
        assert stats.host is not None
        self.books.audit()
        return stats.free_pages == PAGES and stats.host.free_chunks == stats.host.total_chunks


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(DTYPES), st.sampled_from([0.0, 0.1, 1.0]))
def test_m15_round_trips_with_shuffled_places_and_any_budget(
    seed: int, dtype: torch.dtype, share: float
) -> None:
    rng, tiers = random.Random(seed), Tiers(dtype, share)
    budgets = [1, 3 * tiers.layout.page_bytes, 1 << 30]
    lengths: dict[str, int] = {}
    for _ in range(25):
        user = rng.choice("abcdef")
        tokens = min(60, lengths.get(user, 0) + rng.randint(0, 9))
        lengths[user] = max(1, tokens)
        wanted = ref(lengths[user], user)
        answer = tiers.books.lookup(wanted)
        if isinstance(answer, Hit) and answer.host > answer.device_end:
            part = rng.choice([answer.host, rng.randint(answer.device_end + 1, answer.host)])
            assert tiers.load(wanted, part, rng.choice(budgets))
            tiers.expect(ref(part, user))
        answer = tiers.books.lookup(wanted)
        on_device = answer.device_end if isinstance(answer, Hit) else 0
        if on_device < wanted.tokens:
            assert tiers.compute(wanted) == wanted.tokens - on_device
        tiers.expect(wanted)
        if rng.random() < 0.7:
            assert tiers.spill(wanted, rng.choice(budgets))
            assert tiers.books.lookup(wanted) == Hit(0, 0, wanted.tokens, 0, wanted.tokens)
    for user in "abcdef":
        tiers.books.forget(Tenant("t"), UserId(user))
    assert tiers.full()


def test_a_step_is_bounded_and_a_transfer_visible_only_at_its_end() -> None:
    tiers, wanted = Tiers(), ref(30)
    tiers.compute(wanted)
    transfer = tiers.carrier.spill(wanted, 0.0)
    assert isinstance(transfer, Storing)
    done = []
    while not tiers.carrier.step(transfer, 2 * tiers.layout.page_bytes):
        done.append(transfer.bytes_done // tiers.layout.token_bytes)
        assert tiers.books.lookup(wanted) == Hit(0, 30, 0, 0, 30)
    assert done == [8, 16, 24]
    assert transfer.bytes_done == transfer.bytes_total == 30 * tiers.layout.token_bytes
    assert tiers.carrier.land(transfer)
    assert not tiers.carrier.land(transfer)
    assert [check.page for check in transfer.sums] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert tiers.carrier.stored_bytes == transfer.bytes_total


def test_m23_adjacent_on_both_sides_is_one_copy() -> None:
    tiers, wanted = Tiers(), ref(30)
    tiers.compute(wanted)
    transfer = tiers.carrier.spill(wanted, 0.0)
    assert isinstance(transfer, Storing)
    assert transfer.step(1 << 30)
    assert transfer.copies == 1


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("how", ["land", "forget", "sweep", "swap"])
def test_cancelled_at_any_stage_nothing_is_visible_and_nothing_stays_pinned(steps: int, how: str) -> None:
    for direction in ("load", "spill"):
        tiers, wanted = Tiers(), ref(16)
        tiers.compute(wanted)
        if direction == "load":
            tiers.spill(wanted)
            transfer = tiers.carrier.load(wanted, 16, 0.0, 5.0)
        else:
            transfer = tiers.carrier.spill(wanted, 0.0)
        assert isinstance(transfer, Transfer)
        for _ in range(steps):
            tiers.carrier.step(transfer, 1)
        if how == "forget":
            assert tiers.books.forget(Tenant("t"), UserId("u")) == 1
        elif how == "sweep":
            assert tiers.books.sweep(100.0) == 1
        elif how == "swap":
            tiers.books.swap_model(Fingerprint(bytes(range(16))))
        if how != "land":
            before = transfer.bytes_done
            assert tiers.carrier.step(transfer, 1)  # asks to be landed, and touches no byte
            assert transfer.bytes_done == before
        visible = tiers.carrier.land(transfer)
        assert visible == (how == "land" and steps == 4)
        if how == "sweep":
            assert tiers.books.lookup(wanted) != Miss()
            tiers.books.forget(Tenant("t"), UserId("u"))
        elif how == "land":
            tiers.books.forget(Tenant("t"), UserId("u"))
        assert tiers.full()


@pytest.mark.parametrize("page", range(4))
def test_damaged_bytes_are_never_used(page: int) -> None:
    tiers, wanted = Tiers(share=1.0), ref(14)
    tiers.compute(wanted)
    assert tiers.spill(wanted)
    tiers.host.values[1, 2, page * PAGE].view(torch.uint8)[0] ^= 4
    transfer = tiers.carrier.load(wanted, 14, 0.0, FAR)
    assert isinstance(transfer, Loading)
    assert not tiers.run(transfer, tiers.layout.page_bytes)
    assert transfer.damaged
    assert tiers.books.lookup(wanted) == Miss()
    stats = tiers.books.stats().host
    assert stats is not None
    assert stats.damaged == 1
    assert tiers.full()
    assert tiers.compute(wanted) == 14


def test_pages_a_load_does_not_touch_are_not_checked() -> None:
    tiers = Tiers(share=1.0)
    tiers.compute(ref(30))
    assert tiers.spill(ref(30))
    tiers.compute(ref(9))
    tiers.host.keys[0, 0, 2] = 1.0  # of page 0, which the device has
    tiers.host.keys[0, 0, 28] = 1.0  # of page 7, which is not asked for
    assert tiers.load(ref(30), 26)
    tiers.expect(ref(26))
    assert not tiers.load(ref(30), 30)


def test_a_transfer_that_was_not_finished_is_not_published() -> None:
    tiers, wanted = Tiers(), ref(30)
    tiers.compute(wanted)
    tiers.spill(wanted)
    transfer = tiers.carrier.load(wanted, 30, 0.0, FAR)
    assert isinstance(transfer, Loading)
    assert not tiers.carrier.step(transfer, 1)
    assert not tiers.carrier.land(transfer)
    assert tiers.books.lookup(wanted) == Hit(0, 0, 30, 0, 30)


def test_r19_a_user_that_returns_costs_the_new_events_alone() -> None:
    tiers = Tiers()
    tiers.compute(ref(30))
    assert tiers.spill(ref(30))
    assert tiers.load(ref(42), 30)
    desk = ResidencyDesk(tiers.books, tiers.pool, 1.0)
    residency = desk.open(ref(42), 0.0)
    assert residency.cached == 30
    desk.close(residency)
    assert tiers.compute(ref(42)) == 12
    tiers.expect(ref(42))


def test_r20_what_is_on_the_device_is_not_read_from_the_host() -> None:
    tiers = Tiers()
    tiers.compute(ref(30))
    assert tiers.spill(ref(30))
    assert tiers.load(ref(30), 30)
    assert tiers.carrier.load(ref(30), 30, 0.0, FAR) == Refused(Reason.NOT_RESIDENT)
    assert tiers.carrier.load(ref(20), 20, 0.0, FAR) == Refused(Reason.NOT_RESIDENT)
    assert tiers.carrier.loaded_bytes == 30 * tiers.layout.token_bytes
    tiers.compute(ref(30, "v"))
    assert tiers.spill(ref(30, "v"))
    assert tiers.load(ref(9, "v"), 9)
    assert tiers.carrier.load(ref(9, "v"), 9, 0.0, FAR) == Refused(Reason.ALREADY_STORED)


def test_the_sample_is_even_and_not_always_the_same() -> None:
    assert sample(100, 1.0, 5) == list(range(100))
    assert sample(0, 1.0, 5) == []
    assert sample(100, 0.0, 5) == []
    assert [len(sample(100, 0.01, ticket)) for ticket in range(3)] == [1, 1, 1]
    assert {page for ticket in range(100) for page in sample(100, 0.01, ticket)} == set(range(100))
    assert sample(8, 0.5, 3) == [1, 3, 5, 7]
    assert len(sample(3, 0.01, 1)) == 1


def test_bad_arguments() -> None:
    tiers = Tiers()
    with pytest.raises(ValueError, match="checksum_share"):
        Mover(tiers.pool, tiers.host, 1.5)
    other = HostPool(KvLayout(2, 3, 5, 2, torch.float16, PAGE), 8)
    with pytest.raises(ValueError, match="not the same"):
        Mover(tiers.pool, other)
