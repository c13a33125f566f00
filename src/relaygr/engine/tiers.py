"""The user states of one engine: books and bytes of both tiers, what is held, what is being moved."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from relaygr.cache.interface import Refused, Stats
from relaygr.cache.lease import ReadLease
from relaygr.cache.tiered import TieredBooks
from relaygr.config.relay import HostConfig
from relaygr.core.errors import ConfigError
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Hit, Ref
from relaygr.engine.disk import DiskTier
from relaygr.engine.residency import ResidencyDesk
from relaygr.engine.transfer import Carrier, Loading, Mover, Storing
from relaygr.memory.host import HostPool
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool

log = logging.getLogger("relaygr.engine")

NO_HOST = HostConfig(host_bytes=0)
Owner = tuple[Tenant, UserId]
_WHOLE = 1 << 62


class Readable(NamedTuple):
    """Matching tokens of a prefix on the device, and in host memory."""

    device: int
    host: int


class Tiers:
    """All methods run where the engine runs; nothing of a user is left behind by `forget`."""

    def __init__(
        self, layout: KvLayout, device_bytes: int, lease_s: float, host: HostConfig = NO_HOST
    ) -> None:
        """Take `device_bytes` of device memory and, if there is that much, `host.host_bytes` of the host's.

        Raises:
            ConfigError: the device pool is smaller than a page or cannot be had, or chunks are not pages.
        """
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
        self.books, self._carrier = _below(layout, pages, lease_s, host, self.pool)
        self.desk = ResidencyDesk(self.books, self.pool, lease_s)
        self._lease_s = lease_s
        self._held: dict[Owner, ReadLease] = {}
        self._loading: dict[Owner, Loading] = {}
        self._spilling: Storing | None = None
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
    def copied_bytes(self) -> tuple[int, int]:
        """From and to host memory."""
        carrier = self._carrier
        return (0, 0) if carrier is None else (carrier.loaded_bytes, carrier.stored_bytes)

    def stats(self) -> Stats:
        return self.books.stats()

    def readable(self, ref: Ref) -> Readable:
        """What is stored of a prefix; changes nothing, and may be asked from any thread."""
        answer = self.books.lookup(ref)
        return Readable(answer.device_end, answer.host) if isinstance(answer, Hit) else Readable(0, 0)

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
        loading = self._loading.pop(owner, None)
        if loading is not None and self._carrier is not None:
            self._carrier.land(loading)
        if self.disk is not None:
            self.disk.abandon(owner)

    def load(self, ref: Ref, now_s: float) -> int:
        """Bring what the host has more of `ref` to the device, all at once; returns the tokens brought."""
        found = self.readable(ref)
        if found.host > found.device and self.load_step(ref, _WHOLE, now_s):
            return max(self.readable(ref).device - found.device, 0)
        return 0

    def load_step(self, ref: Ref, budget_bytes: int, now_s: float) -> bool:
        """A part of that; True when there is nothing left to do, because it is done or because it failed."""
        if self._carrier is None:
            return True
        owner = ref.tenant, ref.user
        transfer = self._loading.get(owner)
        if transfer is None:
            found = self.readable(ref)
            if found.host <= found.device:
                return True
            begun = self._carrier.load(ref, found.host, now_s, now_s + self._lease_s)
            if isinstance(begun, Refused):
                return True
            transfer = self._loading[owner] = begun
        if not self._carrier.step(transfer, budget_bytes):
            return False
        del self._loading[owner]
        self._carrier.land(transfer)
        return True

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
            begun = ((self._carrier.spill(ref, now_s)) for ref in wanted)
            self._spilling = next((one for one in begun if isinstance(one, Storing)), None)
            if self._spilling is None:
                return False
        if self._carrier.step(self._spilling, budget_bytes):
            self._carrier.land(self._spilling)
            self._spilling = None
        return True

    def forget(self, owner: Owner) -> int:
        """Drop everything held of a user, what is on its way included; returns the entries dropped."""
        dropped = self.books.forget(*owner)
        self.abandon(owner)
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


def _below(
    layout: KvLayout, pages: int, lease_s: float, host: HostConfig, pool: PagePool
) -> tuple[TieredBooks, Carrier | None]:
    """The books, and what copies between the tiers; without a host tier where its memory cannot be had."""

    def books(host_bytes: int) -> TieredBooks:
        return TieredBooks(
            pages,
            layout.page_tokens,
            layout.page_bytes,
            lease_s,
            host_bytes=host_bytes,
            run_chunk_tokens=host.run_chunk_tokens if host_bytes else layout.page_tokens,
            layout_id=layout.layout_id,
            store_timeout_s=lease_s,
        )

    if not host.host_bytes:
        return books(0), None
    try:
        tiered = books(host.host_bytes)
        memory = HostPool(layout, tiered.host_tokens)
    except (RuntimeError, ValueError, MemoryError) as error:
        log.warning("no host tier: %s", str(error).splitlines()[0])
        return books(0), None
    return tiered, Carrier(tiered, Mover(pool, memory, host.checksum_share))
