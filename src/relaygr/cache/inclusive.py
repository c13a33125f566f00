"""The books of a device that host memory backs: what is stored stays in both until one needs the room."""

from __future__ import annotations

from relaygr.cache.digests import longest_match
from relaygr.cache.entry import Entry, Identity, identity
from relaygr.cache.flights import Store
from relaygr.cache.host import HostBooks
from relaygr.cache.lease import WriteLease
from relaygr.cache.tiered import TieredBooks
from relaygr.core.state import Ref


class InclusiveBooks(TieredBooks):
    """A `StateCache` for accelerators, whose memory is small and far from the host's.

    A store moves only what the host lacks, in whole pages, and the entry stays on the device; from then on
    it is clean: it leaves before entries of which something would be lost, and leaving costs nothing. A load
    leaves the host's copy where it is. Where host memory is in many pieces, a copy that cannot grow in its
    place is stored anew, whole, in another. What departs from the host's copy shortens that to the pages that
    agree. An entry on the device always begins at token 0, so the host may drop its copy at any time without
    leaving a gap.
    """

    def publish(self, lease: WriteLease, now_s: float) -> bool:
        if not super().publish(lease, now_s):
            return False
        self._judge(lease.identity)
        return True

    def _to_store(self, host: HostBooks, entry: Entry) -> tuple[int, int]:
        size = self.page_tokens
        start, end = host.match(entry.ref) // size * size, entry.tokens // size * size
        return (0 if start < end and host.is_stuck(identity(entry.ref), end) else start), end

    def _still_wanted(self, store: Store) -> bool:
        """What the entry has grown by is left to the next store."""
        entry = self._index.get(store.lease.identity)
        grows = store.base is None or store.base.visible
        return (
            grows and entry is not None and longest_match(entry.ref, store.plan.ref) == store.plan.ref.tokens
        )

    def _stored(self, entry: Entry) -> None:
        self._judge(identity(entry.ref))

    def _left_host(self, key: Identity) -> None:
        self.displaced += self._index.get(key) is not None
        self._judge(key)

    def _drop_unneeded(self, host: HostBooks, key: Identity, ref: Ref) -> None:
        """`ref` is on the device now: what of the host's copy does not agree with it is no use any more."""
        copy = host.get(key)
        if copy is not None:
            same = longest_match(copy.ref, ref)
            if same < min(copy.tokens, ref.tokens):
                host.shrink(key, same // self.page_tokens * self.page_tokens)

    def _judge(self, key: Identity) -> None:
        """Whether the entry is clean may have changed."""
        entry = self._index.get(key)
        if entry is not None and self._host is not None:
            start, end = self._to_store(self._host, entry)
            self._index.prefer(key, safe=start >= end)
