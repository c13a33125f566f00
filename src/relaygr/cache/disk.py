"""The books of the disk tier: which segment holds whose state, who leaves, and who must never come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from relaygr.cache.digests import longest_match
from relaygr.cache.disk_entry import Burial, Burials, DiskEntry, FoundSegment, Owner, Place, Segment
from relaygr.cache.entry import Identity, identity
from relaygr.cache.interface import Cause
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref

SEGMENTS = 16  # that the tier is divided into; one leaves at a time
SPARSE = 4  # a segment of which less than one part in so many is live leaves before others


class DiskBooks:
    """Identity -> entry, over segments of `total_bytes / SEGMENTS`; whole segments leave, least recently used
    first, those with little that is live before all others.

    Changes: `reserve` promises bytes at the end of the segment that is written, which `put` or `give_back`
    ends. `removed` and `burials` say what has to be done to the files, in this order of time: records are
    numbered, so that a burial covers exactly what was promised before it.
    "No" is None from `reserve`, and then nothing changed.
    """

    def __init__(self, total_bytes: int, index_bytes: int, layout_id: str) -> None:
        self.total_bytes, self.index_limit, self.layout_id = total_bytes, index_bytes, layout_id
        self.segment_bytes = max(total_bytes // SEGMENTS, 1)
        self.next_number = 1
        self.used_bytes = self.live_bytes = self.index_bytes = 0
        self.departed = dict.fromkeys(Cause, 0)
        self.removed: list[int] = []
        self.burials: list[Burial] = []
        self.on_put: Callable[[DiskEntry], None] = _ignore
        self.on_left: Callable[[DiskEntry], None] = _ignore
        self._segments: dict[int, Segment] = {}
        self._active: Segment | None = None
        self._next_segment = 1
        self._entries: dict[Identity, DiskEntry] = {}
        self._of_user: dict[Owner, set[Identity]] = {}
        self._uses = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def segments(self) -> int:
        return len(self._segments)

    @property
    def evictions(self) -> int:
        """Entries that left with the segment they lay in."""
        return self.departed[Cause.ROOM]

    def get(self, key: Identity) -> DiskEntry | None:
        return self._entries.get(key)

    def match(self, ref: Ref) -> int:
        """Tokens at the head of `ref` that an entry of this layout holds."""
        entry = self._entries.get(identity(ref))
        if entry is None or entry.layout_id != self.layout_id:
            return 0
        return longest_match(entry.ref, ref)

    def keys_of(self, tenant: Tenant, user: UserId) -> list[Identity]:
        return list(self._of_user.get((tenant, user), ()))

    def keys_of_other_models(self, model_fp: Fingerprint) -> list[Identity]:
        return [key for key in self._entries if key.model_fp != model_fp]

    def touch(self, key: Identity) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            self._uses += 1
            self._segments[entry.place.segment].last_use = self._uses

    def reserve(self, owner: Owner, nbytes: int) -> tuple[int, Place] | None:
        """A record's number and place; the segment stays until `put` or `give_back`."""
        active = self._active
        if active is not None and active.used and active.used + nbytes > self.segment_bytes:
            active = None  # what is full may leave like the others
        short = self.used_bytes + nbytes - self.total_bytes
        if short > sum(one.used for one in self._segments.values() if not one.pins and one is not active):
            return None
        if active is not self._active:
            self.seal()
        while self.used_bytes + nbytes > self.total_bytes:
            victim = self._victim()
            assert victim is not None, "there are enough segments without readers"
            self.remove(victim.number)
        segment = self._active = self._active or self._new_segment()
        place, number = Place(segment.number, segment.used, nbytes), self.next_number
        self.next_number += 1
        segment.used += nbytes
        segment.pins += 1
        self._uses += 1
        segment.last_use = self._uses
        segment.owners.add(owner)
        self.used_bytes += nbytes
        return number, place

    def give_back(self, place: Place) -> None:
        """Nothing of use was written there; the bytes stay used until the segment leaves."""
        self.unpin(place)

    def put(self, entry: DiskEntry) -> bool:
        """Make `entry`, on a reserved place, the one of its identity; the one before leaves.

        False, as after `give_back`, if its file has gone meanwhile.
        """
        if self._segments[entry.place.segment].lost:
            self.give_back(entry.place)
            return False
        self._insert(entry)
        self.unpin(entry.place)
        self.on_put(entry)
        self._fit_index()
        return True

    def drop(self, key: Identity, cause: Cause | None = None) -> None:
        """Nobody finds the entry from now on; its bytes stay until their segment leaves.

        With a `cause` it is counted as one that left for good.
        """
        if cause is not None:
            self.departed[cause] += 1
        entry = self._entries.pop(key)
        entry.visible = False
        mine = self._of_user[key.tenant, key.user]
        mine.discard(key)
        if not mine:
            del self._of_user[key.tenant, key.user]
        segment = self._segments[entry.place.segment]
        segment.keys.discard(key)
        segment.live -= entry.place.nbytes
        self.live_bytes -= entry.place.nbytes
        self.index_bytes -= entry.index_bytes
        self._settle(segment)
        self.on_left(entry)

    def pin(self, place: Place) -> None:
        self._segments[place.segment].pins += 1

    def unpin(self, place: Place) -> None:
        segment = self._segments[place.segment]
        assert segment.pins > 0, "unpinned more often than pinned"
        segment.pins -= 1
        self._settle(segment)

    def forget(self, tenant: Tenant, user: UserId) -> list[Identity]:
        """Drop the user's entries, and bury all that was ever promised to them; returns what was dropped."""
        owner, keys = (tenant, user), self.keys_of(tenant, user)
        holders = [one for one in self._segments.values() if owner in one.owners]
        for segment in holders:
            segment.owners.discard(owner)
            segment.buried[owner] = self.next_number
        for key in keys:
            self.drop(key, Cause.FORGOTTEN)
        if holders:
            numbers = tuple(one.number for one in holders)
            self.burials.append(Burial(owner, self.next_number, numbers))
        return keys

    def needed(self) -> dict[Owner, int]:
        """The burials without which something dead would be found again."""
        found: dict[Owner, int] = {}
        for segment in self._segments.values():
            for owner, number in segment.buried.items():
                found[owner] = max(number, found.get(owner, 0))
        return found

    def seal(self) -> None:
        """Nothing more is written to the segment that is written now."""
        active, self._active = self._active, None
        if active is not None:
            self._settle(active)

    def shrink(self) -> None:
        """There is less room than was promised: from now on something has to leave before more is written."""
        self.total_bytes = min(self.total_bytes, max(self.used_bytes, self.segment_bytes))

    def lose(self, number: int) -> None:
        """The file of a segment is gone, because of somebody who was forgotten, with all that was in it."""
        self.remove(number, Cause.FORGOTTEN)
        segment = self._segments.get(number)
        if segment is not None:
            segment.lost = True

    def remove(self, number: int, cause: Cause = Cause.ROOM) -> None:
        """The segment and all that is in it leave; unknown ones are no matter."""
        segment = self._segments.get(number)
        if segment is None:
            return
        if segment is self._active:
            self._active = None
        segment.pins += 1  # so that the last of its entries does not take it out under the loop
        for key in tuple(segment.keys):
            self.drop(key, cause)
        segment.pins -= 1
        if not segment.pins:
            self._take_out(segment)

    def recover(self, found: Iterable[FoundSegment], burials: Burials) -> None:
        """Begin with what an earlier process left; of records of one identity the last counts."""
        for number, nbytes, entries in found:
            segment = self._segments[number] = Segment(number, used=nbytes)
            self._next_segment = max(self._next_segment, number + 1)
            self.used_bytes += nbytes
            segment.pins += 1
            for entry in entries:
                self._adopt(segment, entry, burials)
            segment.pins -= 1
        self.next_number = max(self.next_number, burials.latest)
        for segment in list(self._segments.values()):
            self._settle(segment)
        while self.used_bytes > self.total_bytes and (victim := self._victim()) is not None:
            self.remove(victim.number)
        self._fit_index()

    def audit(self) -> None:
        """Check the counters against a count from scratch; linear in entries, for tests."""
        entries, segments = self._entries, self._segments
        assert self.used_bytes == sum(one.used for one in segments.values()), "used bytes"
        assert self.used_bytes <= self.total_bytes, "more than may be used"
        assert self.live_bytes == sum(entry.place.nbytes for entry in entries.values()), "live bytes"
        assert self.index_bytes == sum(entry.index_bytes for entry in entries.values()), "index bytes"
        assert len(entries) == sum(map(len, self._of_user.values())), "entries by user"
        assert all(entry.visible for entry in entries.values()), "visible"
        for segment in segments.values():
            mine = {key for key, entry in entries.items() if entry.place.segment == segment.number}
            assert segment.keys == mine, "entries by segment"
            assert segment.live == sum(entries[key].place.nbytes for key in mine), "live bytes of a segment"
            assert mine or segment.pins or segment is self._active, "a dead segment"

    def _insert(self, entry: DiskEntry) -> None:
        key = identity(entry.ref)
        if key in self._entries:
            self.drop(key)
        entry.visible = True
        self._entries[key] = entry
        self._of_user.setdefault((key.tenant, key.user), set()).add(key)
        segment = self._segments[entry.place.segment]
        segment.keys.add(key)
        segment.live += entry.place.nbytes
        self.live_bytes += entry.place.nbytes
        self.index_bytes += entry.index_bytes

    def _adopt(self, segment: Segment, entry: DiskEntry, burials: Burials) -> None:
        owner = entry.ref.tenant, entry.ref.user
        self.next_number = max(self.next_number, entry.number + 1)
        buried = burials.of(owner)
        if entry.number < buried:
            segment.buried[owner] = buried
            return
        segment.owners.add(owner)
        before = self._entries.get(identity(entry.ref))
        if before is None or before.number < entry.number:
            self._insert(entry)

    def _new_segment(self) -> Segment:
        segment = self._segments[self._next_segment] = Segment(self._next_segment)
        self._next_segment += 1
        return segment

    def _victim(self) -> Segment | None:
        """Linear in segments, of which there are few."""
        able = (one for one in self._segments.values() if not one.pins and one is not self._active)
        return min(able, key=lambda one: (SPARSE * one.live >= one.used, one.last_use), default=None)

    def _settle(self, segment: Segment) -> None:
        if not segment.pins and not segment.keys and segment is not self._active:
            self._take_out(segment)

    def _take_out(self, segment: Segment) -> None:
        if self._segments.pop(segment.number, None) is not None:
            self.used_bytes -= segment.used
            self.removed.append(segment.number)

    def _fit_index(self) -> None:
        if self.index_bytes > self.index_limit:
            self.seal()
        while self.index_bytes > self.index_limit and (victim := self._victim()) is not None:
            self.remove(victim.number)


def _ignore(_: DiskEntry) -> None:
    """Nobody wants to know."""
