"""The user states of one engine: books and bytes of both tiers, what is held, what is being moved."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from relaygr.cache.host import Weigh, weigh_by_length
from relaygr.cache.inclusive import InclusiveBooks
from relaygr.cache.interface import Refused, Stats
from relaygr.cache.lease import ReadLease
from relaygr.cache.policies import configured
from relaygr.cache.tiered import TieredBooks
from relaygr.config.host import HostConfig
from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.errors import BackendError, ConfigError
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Hit, Ref
from relaygr.engine.courier import Arrival, CopyStats, courier_for, staging_for
from relaygr.engine.disk import DiskTier
from relaygr.engine.residency import ResidencyDesk
from relaygr.engine.transfer import Carrier, Loading, Mover, Storing
from relaygr.memory.format import HostFormat
from relaygr.memory.formats import SAME, host_format
from relaygr.memory.host import HostPool
from relaygr.memory.lane import Declined, Lanes
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool

log = logging.getLogger("relaygr.engine")

NO_HOST = HostConfig(host_bytes=0)
Owner = tuple[Tenant, UserId]
_WHOLE = 1 << 62


class Readable(NamedTuple):
    """Matching tokens of a prefix on the device, in host memory, and on disk."""

    device: int
    host: int
    disk: int = 0

    @property
    def near(self) -> int:
        """Those that a ranking can have without computing them: it never waits for the disk."""
        return max(self.device, self.host)


Choose = Callable[[Readable], int]
"""The first tokens of a prefix to have on the device before a pass computes the others."""


class Tiers:
    """All methods run where the engine runs; nothing of a user is left behind by `forget`.

    Attributes:
        host_format: how states lie in host memory; exact without a host tier.
    """

    def __init__(
        self,
        layout: KvLayout,
        device_bytes: int,
        lease_s: float,
        host: HostConfig = NO_HOST,
        clock: Clock | None = None,
        lanes: Lanes | None = None,
        weigh: Weigh = weigh_by_length,
    ) -> None:
        """Take `device_bytes` of device memory and, if there is that much, `host.host_bytes` of the host's.

        Copies for rankings go on `lanes`, on threads of their own if it is None; with `host.copy_threads` 0
        they are made where the engine runs. `weigh` tells what a state in host memory is worth to whoever
        decides which of them leave.


        Raises:
            ConfigError: the device pool is smaller than a page or cannot be had, chunks are not pages, or the
                host format does not exist for the device's dtype.
        """
        self.host_format = format_of(host, layout.dtype)
        chunk, page = host.run_chunk_tokens, layout.page_tokens
        if host.host_bytes and chunk % page:
            raise ConfigError("host.run_chunk_tokens", f"{chunk} must be a multiple of {page}, a page")
        pages = device_bytes // layout.page_bytes
        if not pages:
            raise ConfigError(
                "engine.device_bytes", f"{device_bytes} is less than one page, {layout.page_bytes}"
            )
        try:
            self.pool = PagePool(layout, pages=pages)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ConfigError("engine.device_bytes", f"{device_bytes} cannot be had: {reason}") from error
        self.books, self._carrier = _below(layout, pages, lease_s, host, self.host_format, self.pool, weigh)
        self.desk = ResidencyDesk(self.books, self.pool, lease_s)
        self._lease_s, self._clock = lease_s, clock or MonotonicClock()
        self.fails_closed = host.fail_mode == "closed"
        self._courier = courier_for(self._carrier, host, self._clock, lanes)
        self._held: dict[Owner, ReadLease] = {}
        self._loading: dict[Owner, Loading] = {}
        self._spilling: Storing | None = None
        self._spills_in_vain = False
        self.disk: DiskTier | None = None  # below host memory, while it is open

    @property
    def memory(self) -> HostPool | None:
        """The bytes of the host tier."""
        return self._carrier.memory if self._carrier is not None else None

    def spill_all(self, now_s: float) -> None:
        """Bring all that nobody uses to host memory; the last ones stay there if not all have room."""
        for _ in range(self.books.stats().entries):
            self.spill_step(1.0, _WHOLE, now_s, lambda _: True)

    @property
    def has_host(self) -> bool:
        return self._carrier is not None

    @property
    def overlaps(self) -> bool:
        """Whether passes compute while what they load is copied."""
        return self._courier is not None

    def queue_s(self) -> float:
        """Until a load for a ranking would begin."""
        return self._courier.queue_s() if self._courier is not None else 0.0

    @property
    def host_token_bytes(self) -> int:
        """That a copy of one token reads or writes in host memory."""
        return self.host_format.token_bytes(self.pool.layout)

    @property
    def copied_bytes(self) -> tuple[int, int]:
        """From and to host memory."""
        carrier = self._carrier
        return (0, 0) if carrier is None else (carrier.loaded_bytes, carrier.stored_bytes)

    def stats(self) -> Stats:
        if self._courier is not None:
            self._courier.poll(self._clock.now_s())
        return self.books.stats()

    def readable(self, ref: Ref) -> Readable:
        """What is stored of a prefix; changes nothing, and may be asked from any thread."""
        answer = self.books.lookup(ref)
        if not isinstance(answer, Hit):
            return Readable(0, 0)
        return Readable(answer.device_end, answer.host, answer.disk)

    def hold(self, ref: Ref, now_s: float, until_s: float) -> int:
        """Keep what the device has of `ref` from being evicted, in place of what was held of the user.

        Returns the tokens held; 0 if there are none. Ends with `let_go`, or by itself after `until_s`.
        """
        owner = ref.tenant, ref.user
        tokens = self.readable(ref).device
        lease = self.books.lease(ref, tokens, "hold", now_s, until_s) if tokens else None
        self.let_go(owner)
        if not isinstance(lease, ReadLease):
            return 0
        self._held[owner] = lease
        return tokens

    def let_go(self, owner: Owner) -> None:
        lease = self._held.pop(owner, None)
        if lease is not None:
            lease.release()

    def abandon(self, owner: Owner) -> None:
        """`let_go`, and end a load that nobody goes on with."""
        self.let_go(owner)
        self._end_load(owner)
        if self.disk is not None:
            self.disk.abandon(owner)

    def sweep(self, now_s: float) -> None:
        """End what is overdue."""
        # Pages are not taken from under a copy that runs, however late it is.
        if self._courier is None or self._courier.poll(now_s):
            self.books.sweep(now_s)

    def copy_stats(self) -> CopyStats:
        carrier = self._carrier
        if carrier is None:
            return CopyStats()
        stats = CopyStats() if self._courier is None else self._courier.stats()
        return replace(
            stats,
            failed_loads=stats.failed_loads + carrier.failed_loads,
            failed_stores=stats.failed_stores + carrier.failed_stores,
            staging_bytes=carrier.staging_bytes,
        )

    def loads_in_time(self, found: Readable, now_s: float, by_s: float) -> bool:
        """Whether what the host has more than the device would be there by then; may be asked by anybody."""
        missing = (found.host - found.device) * self.host_token_bytes
        if missing <= 0 or self._courier is None:
            return True
        return self._courier.in_time(missing, now_s, by_s)

    def arrive(
        self, ref: Ref, now_s: float, by_s: float, choose: Choose
    ) -> Arrival | int | BackendError | None:
        """Begin to bring what the host has more of `ref` to the device, for a pass that computes the rest.

        Returns what the pass is to wait for, or the tokens that are there now; None if the host has more but
        cannot bring it by then, and an error if it failed and that is not to be made up for. A load that has
        begun goes on, whatever would be chosen now.
        """
        found, carrier, courier = self.readable(ref), self._carrier, self._courier
        if carrier is None or not found.near:
            return 0
        begun = (ref.tenant, ref.user) in self._loading
        wanted = found.host if begun else choose(found)
        if wanted <= found.device:
            return 0
        if courier is None:
            failed = carrier.failed_loads
            brought = self.load(ref, now_s, wanted)
            if brought or carrier.failed_loads == failed:
                return brought
            return self._failed(ref, carrier.failure)
        # Of the rest of a reload no layer would be there before all are; anew, layer by layer, is sooner.
        self._end_load((ref.tenant, ref.user))
        by_s = min(by_s, now_s + self._lease_s)
        nbytes = (wanted - found.device) * self.host_token_bytes
        arrival = courier.arrive(ref, wanted, nbytes, now_s, by_s)
        if isinstance(arrival, Refused):
            return 0
        return None if isinstance(arrival, Declined) else arrival

    def lost(self, arrival: Arrival) -> BackendError | None:
        """What a load that did not come means for its request: an error, or None to compute."""
        return self._failed(arrival.ref, arrival.lost)

    def _failed(self, ref: Ref, why: str) -> BackendError | None:
        if not self.fails_closed:
            return None
        return BackendError(f"the prefix of user {ref.user!r} could not be loaded: {why}")

    def _end_load(self, owner: Owner) -> None:
        loading = self._loading.pop(owner, None)
        if loading is not None and self._carrier is not None:
            self._carrier.land(loading)

    def load(self, ref: Ref, now_s: float, tokens: int = _WHOLE) -> int:
        """Bring what the host has more of the first `tokens` of `ref`, all at once; returns what came."""
        found = self.readable(ref)
        if min(found.host, tokens) > found.device and self.load_step(ref, _WHOLE, now_s, tokens):
            return max(self.readable(ref).device - found.device, 0)
        return 0

    def load_step(self, ref: Ref, budget_bytes: int, now_s: float, tokens: int = _WHOLE) -> bool:
        """Copy a part of what the host has more of the first `tokens` of `ref` to the device.

        True when there is nothing left to do, because it is done or because it failed.
        """
        if self._carrier is None:
            return True
        owner = ref.tenant, ref.user
        transfer = self._loading.get(owner)
        if transfer is None:
            found = self.readable(ref)
            wanted = min(found.host, tokens)
            if wanted <= found.device:
                return True
            begun = self._carrier.load(ref, wanted, now_s, now_s + self._lease_s)
            if isinstance(begun, Refused):
                return True
            transfer = self._loading[owner] = begun
        if not self._carrier.step(transfer, budget_bytes):
            return False
        del self._loading[owner]
        self._carrier.land(transfer)
        return True

    def reload_step(self, ref: Ref, budget_bytes: int, now_s: float) -> bool:
        """`load_step` for a prefix that nobody ranks yet.

        Raises:
            BackendError: the copy failed, and that is not to be made up for.
        """
        before = self._carrier.failed_loads if self._carrier is not None else 0
        done = self.load_step(ref, budget_bytes, now_s)
        if done and self._carrier is not None and self._carrier.failed_loads > before:
            error = self._failed(ref, self._carrier.failure)
            if error is not None:
                raise error
        return done

    def wants_spill(self, free_share: float) -> bool:
        """Whether a part of a spill is to be copied, or fewer pages than this share are free."""
        if self._carrier is None:
            return False
        return self._spilling is not None or self._short_of(free_share) > 0

    def spill_step(
        self, free_share: float, budget_bytes: int, now_s: float, worth: Callable[[Ref], bool]
    ) -> bool:
        """Copy a part of the state that was used longest ago to the host; False if there is nothing to copy.

        Args:
            free_share: of the device pages, to be free or safe to take.
            worth: whether a state is worth a place in host memory.
        """
        if self._carrier is None:
            return False
        if self._spilling is None:
            target = self._short_of(free_share)
            candidates = self.books.spill_candidates(target) if target > 0 else []
            wanted = (ref for ref in candidates if worth(ref))
            displaced = self.books.displaced
            begun = ((self._carrier.spill(ref, now_s)) for ref in wanted)
            self._spilling = next((one for one in begun if isinstance(one, Storing)), None)
            self._spills_in_vain = self.books.displaced > displaced
            if self._spilling is None:
                return False
        if not self._carrier.step(self._spilling, budget_bytes):
            return True
        spilled, self._spilling = self._spilling, None
        self._carrier.land(spilled)
        # It would only fail again, or make safe what was unsafe and unsafe what was safe, without end.
        return not spilled.failed and not self._spills_in_vain

    def forget(self, owner: Owner) -> int:
        """Drop everything held of a user, what is on its way included; returns the entries dropped."""
        dropped = self.books.forget(*owner)
        self.abandon(owner)
        if self._courier is not None:
            self._courier.forget(owner)
        spilling, carrier = self._spilling, self._carrier
        if carrier is not None and spilling is not None:
            ref = spilling.plan.ref
            if (ref.tenant, ref.user) == owner:
                carrier.land(spilling)
                self._spilling = None
        return dropped

    def _short_of(self, free_share: float) -> int:
        """The number of pages wanted free, if fewer are; else 0."""
        stats = self.books.stats()
        wanted = int(free_share * stats.total_pages)
        return wanted if stats.free_pages < wanted else 0


def format_of(host: HostConfig, dtype: torch.dtype) -> HostFormat:
    """How `host` keeps states that have `dtype` on the device; as they are where there is no host tier.

    Raises:
        ConfigError: torch has no such type here, or the device's has more than 32 bits.
    """
    if not host.host_bytes:
        return SAME
    try:
        return host_format(host.host_dtype, dtype)
    except ValueError as error:
        raise ConfigError("host.host_dtype", f"{host.host_dtype!r}: {error}") from error


def _below(
    layout: KvLayout,
    pages: int,
    lease_s: float,
    host: HostConfig,
    form: HostFormat,
    pool: PagePool,
    weigh: Weigh,
) -> tuple[TieredBooks, Carrier | None]:
    """The books, and what copies between the tiers; without a host tier where its memory cannot be had."""

    inclusive = host.tier_mode == "inclusive" or (host.tier_mode == "auto" and pool.device.type != "cpu")
    kind = InclusiveBooks if inclusive else TieredBooks

    def books(host_bytes: int) -> TieredBooks:
        return kind(
            pages,
            layout.page_tokens,
            layout.page_bytes,
            lease_s,
            host_bytes=host_bytes,
            host_token_bytes=form.token_bytes(layout),
            host_rounds=not form.exact,
            run_chunk_tokens=host.run_chunk_tokens if host_bytes else layout.page_tokens,
            layout_id=form.layout_id(layout),
            store_timeout_s=host.store_timeout_ms / 1000,
            policy=configured(host),
            weigh=weigh,
        )

    if not host.host_bytes:
        return books(0), None
    try:
        tiered = books(host.host_bytes)
        memory = HostPool(layout, tiered.host_tokens, form)
    except (RuntimeError, ValueError, MemoryError) as error:
        log.warning("no host tier: %s", str(error).splitlines()[0])
        return books(0), None
    return tiered, Carrier(tiered, Mover(pool, memory, host.checksum_share, staging_for(pool, host, form)))
