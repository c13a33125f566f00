"""Copies on lanes with their bytes: each layer when it is there, nothing visible early, nothing left over."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_transfer import FAR, PAGE, PAGES, Tiers, ref

from relaygr.cache.interface import Refused
from relaygr.config.host import HostConfig
from relaygr.core.clock import ManualClock
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Hit, Miss, Ref
from relaygr.core.units import MIB
from relaygr.engine.courier import Arrival, Courier, LoadLostError, staging_for
from relaygr.engine.transfer import Storing, Transfer
from relaygr.memory.lane import Declined, Lanes, Rush, State
from relaygr.memory.lanes import thread_lanes
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool
from relaygr.memory.staging import Staging
from relaygr.memory.virtual import virtual_lanes

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
PATIENCE_S = 20.0
OTHER = Fingerprint(bytes(range(16)))
Wrap = Callable[[Transfer, int, Callable[[int], None]], None]


class Rig(Tiers):
    """Tiers with a courier; `wrap` is called instead of each copy of a layer."""

    def __init__(self, virtual: bool = True, staging_tokens: int = 0) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.lanes: Lanes = virtual_lanes(self.clock, 1e6) if virtual else thread_lanes(1, self.clock)
        self.courier = Courier(self.carrier, self.lanes, self.clock)
        self.wrap: Wrap | None = None
        if staging_tokens:
            self.carrier._mover.staging = Staging(self.layout, staging_tokens, torch.device("cpu"))
        for name in ("load", "store"):
            self._tap(name)

    def _tap(self, name: str) -> None:
        made = getattr(self.carrier._mover, name)

        def tapped(plan: Any) -> Transfer:
            transfer: Transfer = made(plan)
            whole = transfer.carry

            def carry(layer: int) -> None:
                if self.wrap is None:
                    whole(layer)
                else:
                    self.wrap(transfer, layer, whole)

            transfer.carry = carry  # type: ignore[method-assign]
            return transfer

        setattr(self.carrier._mover, name, tapped)

    def away(self, wanted: Ref) -> None:
        """It is in host memory only."""
        self.compute(wanted)
        assert self.spill(wanted)

    def arrive(self, wanted: Ref, tokens: int, by_s: float = FAR) -> Arrival:
        nbytes = tokens * self.layout.token_bytes
        found = self.courier.arrive(wanted, tokens, nbytes, self.clock.now_s(), by_s)
        assert isinstance(found, Arrival), found
        return found

    def use(self, arrival: Arrival, layer: int) -> None:
        """What a pass does on one layer: wait, look, write the rows that are its own."""
        arrival.gate(layer)
        cached, wanted = arrival.cached, arrival.ref
        rows = self.rows(wanted.user, layer, wanted.tokens)
        read = self.pool.read(layer, arrival.pages, cached, False)
        for got, want in zip(read, rows, strict=True):
            assert torch.equal(
                got[:, :cached].transpose(0, 1).contiguous().view(torch.uint8),
                want[:cached].contiguous().view(torch.uint8),
            )
        if cached < wanted.tokens:
            self.pool.write(layer, arrival.pages, cached, rows[0][cached:], rows[1][cached:])

    def passed(self, arrival: Arrival) -> bool:
        size = self.layout.pages_for(arrival.cached)
        self.pool.zero(arrival.pages[size:])
        for layer in range(2):
            self.use(arrival, layer)
        return arrival.keep()

    def store(self, wanted: Ref, deadline_s: float = FAR) -> Storing:
        storing = self.carrier.spill(wanted, self.clock.now_s())
        assert isinstance(storing, Storing), storing
        assert not isinstance(self.courier.launch(storing, Rush.STORE, deadline_s), Declined)
        return storing


@pytest.mark.parametrize("virtual", [True, False])
@pytest.mark.parametrize("staging_tokens", [0, 5, 64])
@pytest.mark.parametrize(("tokens", "more"), [(16, 0), (14, 0), (14, 1), (13, 9), (1, 1), (30, 30)])
def test_m15_a_pass_reads_each_layer_and_writes_behind_it(
    virtual: bool, staging_tokens: int, tokens: int, more: int
) -> None:
    rig, wanted = Rig(virtual, staging_tokens), ref(tokens + more)
    rig.compute(ref(tokens))
    storing = rig.store(ref(tokens))
    assert storing.ticket is not None
    assert storing.ticket.settle(PATIENCE_S)
    assert rig.courier.land(storing)
    assert not rig.courier.land(storing)
    assert rig.books.lookup(wanted) == Hit(0, 0, tokens, 0, tokens)
    assert rig.passed(rig.arrive(wanted, tokens))
    rig.expect(wanted)
    rig.books.forget(Tenant("t"), UserId("u"))
    assert rig.full()
    assert len(rig.courier) == 0


def test_a_part_of_the_prefix_is_on_the_device_already() -> None:
    rig, wanted = Rig(), ref(40)
    rig.away(ref(30))
    rig.compute(ref(9))
    arrival = rig.arrive(wanted, 30)
    assert (arrival.loading.plan.start, arrival.loading.plan.tokens, arrival.cached) == (9, 21, 30)
    assert rig.passed(arrival)
    rig.expect(wanted)


def test_m16_nothing_is_visible_before_all_of_it_is() -> None:
    rig, wanted = Rig(), ref(20)
    rig.away(ref(14))
    before = rig.books.lookup(wanted)
    assert before == Hit(0, 0, 14, 0, 14)
    arrival = rig.arrive(wanted, 14)
    for layer in range(2):
        assert rig.books.lookup(wanted) == before
        rig.use(arrival, layer)
    assert rig.books.lookup(wanted) == before
    assert arrival.keep()
    assert rig.books.lookup(wanted) == Hit(0, 20, 0, 0, 20)


@pytest.mark.parametrize("staging_tokens", [0, 64])
def test_m23_one_copy_for_each_layer_and_run_however_pages_lie(staging_tokens: int) -> None:
    rig, wanted = Rig(staging_tokens=staging_tokens), ref(60)
    for number in range(PAGES):  # leave every other page free
        rig.compute(ref(PAGE, f"v{number}"))
    for number in range(0, PAGES, 2):
        rig.books.forget(Tenant("t"), UserId(f"v{number}"))
    rig.compute(wanted)
    storing = rig.store(wanted)
    rig.clock.advance(1.0)
    rig.lanes.d2h.stats()
    assert rig.courier.land(storing)
    assert storing.copies == 2 * len(storing.plan.runs)
    arrival = rig.arrive(wanted, 60)
    assert len(rig.pool.place(arrival.pages).runs) > len(arrival.loading.plan.runs)
    assert rig.passed(arrival)
    assert arrival.loading.copies == 2 * len(arrival.loading.plan.runs)
    rig.expect(wanted)
    stats = rig.courier.stats()
    assert stats.h2d is not None
    assert stats.h2d.bytes_total == 60 * rig.layout.token_bytes
    assert stats.h2d.gib_per_s == pytest.approx(1e6 / (1 << 30))


def test_m8_forgetting_waits_for_the_running_copy_and_leaves_nothing() -> None:
    rig, wanted = Rig(virtual=False), ref(16)
    rig.away(wanted)
    entered, door = threading.Event(), threading.Event()

    def hold(_: Transfer, layer: int, whole: Callable[[int], None]) -> None:
        entered.set()
        assert door.wait(PATIENCE_S)
        whole(layer)

    rig.wrap = hold
    arrival = rig.arrive(wanted, 16)
    assert entered.wait(PATIENCE_S)
    arrival.drop()  # its pages are still being written
    assert not rig.full()
    assert rig.courier.poll(0.0)
    assert not rig.courier.poll(2 * FAR)  # nothing may take them away, however late it is
    forgotten = threading.Thread(
        target=lambda: (rig.books.forget(Tenant("t"), UserId("u")), rig.courier.forget(wanted_owner(wanted)))
    )
    forgotten.start()
    forgotten.join(0.05)
    assert forgotten.is_alive()
    door.set()
    forgotten.join(PATIENCE_S)
    assert not forgotten.is_alive()
    assert rig.books.lookup(wanted) == Miss()
    assert rig.full()
    rig.courier.close()


def wanted_owner(wanted: Ref) -> tuple[Tenant, UserId]:
    return wanted.tenant, wanted.user


def test_m25_a_load_that_would_be_late_is_not_prepared() -> None:
    rig, wanted = Rig(), ref(30)
    rig.away(wanted)
    nbytes = 30 * rig.layout.token_bytes
    late_s = rig.clock.now_s() + nbytes / 1e6 * 0.99
    assert rig.courier.arrive(wanted, 30, nbytes, rig.clock.now_s(), late_s) is Declined.LATE
    stats = rig.books.stats()
    assert (stats.leases, rig.courier.stats().declined_loads, len(rig.courier)) == (0, 1, 0)
    assert rig.passed(rig.arrive(wanted, 30, late_s * 1.1))


KINDS = ("none", "error", "death", "damage", "late", "drop", "forget", "swap", "sweep", "twice")


def test_m24_a_layer_that_does_not_fit_goes_in_parts() -> None:
    rig = Rig(staging_tokens=7)
    staging = rig.carrier._mover.staging
    assert staging is not None
    row = max(rig.layout.row_bytes(layer) for layer in range(2))
    assert (staging.buffer_bytes, staging.nbytes) == (7 * row, 4 * 7 * row)
    places = [buffer.data_ptr() for buffer in staging._in + staging._out]
    assert len(set(places)) == 4
    rig.away(ref(30))
    arrival = rig.arrive(ref(30), 30)
    assert rig.passed(arrival)
    assert arrival.loading.copies == 2 * sum(-(-run.tokens // 7) for run in arrival.loading.plan.runs)
    assert places == [buffer.data_ptr() for buffer in staging._in + staging._out]
    rig.expect(ref(30))
    with pytest.raises(ValueError, match="tokens: 0"):
        Staging(rig.layout, 0, torch.device("cpu"))


def test_m24_staging_is_for_devices_that_are_no_ordinary_memory_and_says_its_size(
    caplog: pytest.LogCaptureFixture,
) -> None:
    layout = KvLayout(2, 4, 128, 128, torch.float32, 32)
    host = HostConfig(staging_tokens=8192)
    with caplog.at_level(logging.INFO):
        assert staging_for(PagePool(layout, pages=1), host) is None
        assert caplog.text == ""
        staging = staging_for(PagePool(layout, "meta", pages=1), host)
    assert staging is not None
    assert staging.nbytes == 4 * 32 * MIB
    assert "2 buffers in each direction of 8192 tokens, 32.0 MiB each, 128.0 MiB in all" in caplog.text


class Chaos:
    """Transfers of random users with a fault or a cancel at a random stage of each."""

    def __init__(self, seed: int, virtual: bool) -> None:
        self.rng, self.rig, self.virtual = random.Random(seed), Rig(virtual), virtual
        self.ended: dict[str, int] = {}

    def run(self) -> None:
        rig, rng = self.rig, self.rng
        user, kind, stage = rng.choice("abcde"), rng.choice(KINDS), rng.randint(0, 1)
        tokens = rng.randint(1, 30)
        wanted = ref(tokens + rng.choice([0, 0, 1, 7]), user)
        rig.wrap = self._faulty(kind, stage)
        answer = rig.books.lookup(wanted)
        if isinstance(answer, Hit) and answer.host > answer.device_end:
            self._load(wanted, answer.host, kind, stage)
        elif isinstance(answer, Hit) and answer.device_end == wanted.tokens:
            self._store(wanted, kind, stage)
        else:
            assert rig.compute(wanted) > 0
        rig.wrap = None
        rig.courier.poll(rig.clock.now_s())
        assert len(rig.courier) == 0
        rig.books.audit()
        self._right(user)

    def _right(self, user: str) -> None:
        """What the device says it has of a user is bit by bit what was computed."""
        answer = self.rig.books.lookup(ref(40, user))
        if isinstance(answer, Hit) and answer.device_end:
            self.rig.expect(ref(answer.device_end, user))

    def _load(self, wanted: Ref, tokens: int, kind: str, stage: int) -> None:
        rig = self.rig
        found = rig.courier.arrive(wanted, tokens, 0, rig.clock.now_s(), rig.clock.now_s() + 50.0)
        if isinstance(found, Refused):
            return
        assert isinstance(found, Arrival), found
        rig.pool.zero(found.pages[rig.layout.pages_for(found.cached) :])
        broken = kind in ("error", "death", "damage")
        try:
            for layer in range(2):
                if layer == stage:
                    self._disturb(wanted, kind)
                if kind == "drop" and layer == stage:
                    break
                # Damage is known with the last layer; until then the rows may be wrong, and are not used.
                found.gate(layer) if broken else rig.use(found, layer)
        except LoadLostError:
            # A layer that was there before the clock moved on, or before the copy was ended, is no loss.
            assert broken or kind in ("late", "forget", "swap", "sweep")
            assert found.lost
            found.drop()
        else:
            assert not broken
            kept = found.keep() if kind != "drop" else found.drop()
            if kind in ("none", "twice"):
                assert kept
            if kind in ("drop", "forget", "swap", "sweep"):
                assert not kept
            if kind == "twice":
                assert not found.keep()
        self._settle()
        if kind in ("forget", "swap"):
            assert rig.books.lookup(wanted) == Miss()
        self.ended[f"load {kind}"] = self.ended.get(f"load {kind}", 0) + 1

    def _store(self, wanted: Ref, kind: str, stage: int) -> None:
        rig = self.rig
        storing = rig.carrier.spill(wanted, rig.clock.now_s())
        if isinstance(storing, Refused):
            return
        ticket = rig.courier.launch(storing, Rush.STORE, rig.clock.now_s() + 50.0)
        assert not isinstance(ticket, Declined)
        if stage:
            ticket.wait(0, 10.0)
        self._disturb(wanted, kind)
        if kind == "drop":
            rig.courier.drop(storing)
        ticket.settle()
        visible = rig.courier.land(storing)
        if kind in ("error", "death", "forget", "swap", "sweep"):
            assert not visible
        if kind in ("none", "twice", "damage"):
            assert visible
        assert not rig.courier.land(storing)
        self._settle()
        self.ended[f"store {kind}"] = self.ended.get(f"store {kind}", 0) + 1

    def _settle(self) -> None:
        for transfer in tuple(self.rig.courier._under_way):
            assert transfer.ticket is not None
            assert transfer.ticket.settle(PATIENCE_S)

    def _disturb(self, wanted: Ref, kind: str) -> None:
        rig, now = self.rig, self.rig.clock.now_s()
        if kind == "late":
            rig.clock.advance(60.0)
        elif kind == "forget":
            rig.books.forget(*wanted_owner(wanted))
            rig.courier.forget(wanted_owner(wanted))
        elif kind == "swap":
            rig.books.swap_model(OTHER)
            rig.books.swap_model(wanted.model_fp)
        elif kind == "sweep":
            self._stop()
            assert rig.courier.poll(now + 1000.0)
            rig.books.sweep(now + 1000.0)

    def _stop(self) -> None:
        """As the engine before it sweeps: no copy runs on what is taken away."""
        for transfer in tuple(self.rig.courier._under_way):
            self.rig.courier.drop(transfer)
            assert transfer.ticket is not None
            transfer.ticket.settle()

    def _faulty(self, kind: str, stage: int) -> Wrap | None:
        if kind not in ("error", "death", "damage"):
            return None

        def faulty(transfer: Transfer, layer: int, whole: Callable[[int], None]) -> None:
            if layer == stage and kind == "error":
                raise RuntimeError("torn")
            if layer == stage and kind == "death" and not self.virtual:
                raise SystemExit
            if layer == stage and kind == "death":
                raise RuntimeError("a virtual lane has no thread to lose")
            if layer == stage and kind == "damage" and not isinstance(transfer, Storing):
                # Of every page, so that one is among those that are loaded.
                run = transfer.plan.runs[0]
                rows = self.rig.host.values.narrow(2, run.offset, run.tokens)
                rows.view(torch.int32).bitwise_xor_(4)
            whole(layer)

        return faulty

    def finish(self) -> None:
        for user in "abcde":
            self.rig.books.forget(Tenant("t"), UserId(user))
        assert self.rig.full()
        self.rig.courier.close()


def chaos(seed: int, runs: int, virtual: bool) -> dict[str, int]:
    machine = Chaos(seed, virtual)
    machine.rig.carrier._mover.checksum_share = 1.0
    for _ in range(runs):
        machine.run()
    machine.finish()
    return machine.ended


@pytest.mark.parametrize("virtual", [True, False])
def test_m19_hundreds_of_faults_at_random_stages_leave_all_pools_full(virtual: bool) -> None:
    ended = chaos(1, 600, virtual)
    assert {kind.split()[1] for kind in ended} == set(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("virtual", [True, False])
def test_m19_ten_thousand_faults_at_random_stages_leave_all_pools_full(virtual: bool) -> None:
    ended = chaos(2, 10_000, virtual)
    assert min(ended.values()) > 20


def test_states_of_a_plan_and_what_is_counted() -> None:
    rig, wanted = Rig(), ref(16)
    rig.away(wanted)

    def torn(_: Transfer, layer: int, whole: Callable[[int], None]) -> None:
        if layer:
            raise RuntimeError("torn")
        whole(layer)

    rig.wrap = torn
    arrival = rig.arrive(wanted, 16)
    assert arrival.ticket.state is State.PLANNED
    arrival.gate(0)
    with pytest.raises(LoadLostError, match="torn"):
        arrival.gate(1)
    assert arrival.ticket.state is State.FAILED
    arrival.drop()
    assert not arrival.keep()
    stats = rig.courier.stats()
    assert (stats.late_loads, stats.failed_loads, stats.failed_stores) == (1, 1, 0)
    assert rig.books.lookup(wanted) == Hit(0, 0, 16, 0, 16)  # it may be tried again
    rig.wrap = None
    assert rig.passed(rig.arrive(wanted, 16))
