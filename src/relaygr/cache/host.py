"""The books of the host tier: which chunks hold whose state, and who leaves when room is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from relaygr.cache.digests import longest_match
from relaygr.cache.entry import Identity, identity
from relaygr.cache.interface import HostRun, PageSum
from relaygr.cache.recency import Recency
from relaygr.cache.runs import Run, RunAllocator
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref

# Entries that fill memory to the last chunk are soon in pieces of one chunk each; one part in so many stays
# free as long as somebody can be evicted, and most entries then lie in one run.
HEADROOM = 20


@dataclass(slots=True, eq=False)
class HostEntry:
    """One stored version of a user's state, from token 0 on; nothing of its content ever changes.

    Attributes:
        runs: its chunks, in token order.
        layout_id: how the bytes of a token lie; an entry of another layout is no use.
        sums: checksums taken when it was stored.
        pins: loads that read it; its chunks stay until the last has ended, whatever becomes of the entry.
        visible: whether `HostBooks` still has it.
    """

    ref: Ref
    runs: tuple[Run, ...]
    layout_id: str
    sums: tuple[PageSum, ...] = field(repr=False)
    pins: int = field(default=0, init=False)
    visible: bool = field(default=False, init=False)

    @property
    def tokens(self) -> int:
        return self.ref.tokens

    @property
    def chunks(self) -> int:
        return sum(run.chunks for run in self.runs)


class HostBooks:
    """Identity -> entry, over `chunks` chunks of `chunk_tokens` tokens; the least recently used leaves first.

    Changes: chunks leave the free set through `reserve` and come back through `give_back`, or when their
    entry has left and nobody reads it any more.
    "No" is None, and then nothing changed.
    """

    def __init__(self, chunks: int, chunk_tokens: int, layout_id: str) -> None:
        self.chunk_tokens, self.layout_id = chunk_tokens, layout_id
        self._space = RunAllocator(chunks)
        self._headroom = chunks // HEADROOM
        self._entries: dict[Identity, HostEntry] = {}
        self._of_user: dict[tuple[Tenant, UserId], set[Identity]] = {}
        self._recency = Recency()
        self.evictable_chunks = 0
        self.evictions = 0
        self.runs = 0
        self.on_put: Callable[[HostEntry], None] | None = None  # told of what has come
        self.on_remove: Callable[[HostEntry], None] | None = None  # and of what has left, for whatever reason

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def total_chunks(self) -> int:
        return self._space.total

    @property
    def free_chunks(self) -> int:
        return self._space.free_count

    def chunks_for(self, tokens: int) -> int:
        return -(-tokens // self.chunk_tokens)

    def get(self, key: Identity) -> HostEntry | None:
        return self._entries.get(key)

    def entries(self) -> Iterator[HostEntry]:
        """In the order in which they came; nothing may change meanwhile."""
        return iter(self._entries.values())

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
        if key in self._entries:
            self._recency.touch(key)

    def reserve(self, tokens: int) -> tuple[Run, ...] | None:
        """Chunks for `tokens` tokens, which are the caller's until `put` or `give_back`.

        Evicts the shortfall, and the headroom's share of it if there is somebody to evict.
        """
        need = self.chunks_for(tokens)
        if need > self.free_chunks + self.evictable_chunks:
            return None
        while self.free_chunks < need + self._headroom:
            victim = self._recency.pop_oldest()
            if victim is None:
                break
            self._remove(victim)
            self.evictions += 1
        return self._space.take(need)

    def give_back(self, runs: tuple[Run, ...]) -> None:
        self._space.free(runs)

    def put(self, entry: HostEntry) -> None:
        """Make `entry`, on reserved chunks, the one of its identity; the one before leaves."""
        key = identity(entry.ref)
        if key in self._entries:
            self.drop(key)
        entry.visible = True
        self._entries[key] = entry
        self._of_user.setdefault((key.tenant, key.user), set()).add(key)
        self._recency.insert(key)
        self.evictable_chunks += entry.chunks
        self.runs += len(entry.runs)
        if self.on_put is not None:
            self.on_put(entry)

    def drop(self, key: Identity) -> None:
        """Nobody finds the entry from now on; readers keep its chunks until they let go."""
        self._recency.remove(key)
        self._remove(key)

    def pin(self, entry: HostEntry) -> None:
        if not entry.pins:
            self._recency.park(identity(entry.ref))
            self.evictable_chunks -= entry.chunks
        entry.pins += 1

    def unpin(self, entry: HostEntry) -> None:
        assert entry.pins > 0, "unpinned more often than pinned"
        entry.pins -= 1
        if entry.pins:
            return
        if entry.visible:
            self._recency.unpark(identity(entry.ref))
            self.evictable_chunks += entry.chunks
        else:
            self._space.free(entry.runs)

    def host_runs(self, runs: tuple[Run, ...], tokens: int) -> tuple[HostRun, ...]:
        """`runs` in tokens: where the first `tokens` tokens of an entry lie."""
        found, start = [], 0
        for run in runs:
            if start < tokens:
                length = min(run.chunks * self.chunk_tokens, tokens - start)
                found.append(HostRun(start, length, run.first * self.chunk_tokens))
                start += length
        return tuple(found)

    def audit(self) -> None:
        """Check the counters against a count from scratch; linear in entries, for tests."""
        entries = self._entries
        unpinned = {key for key, entry in entries.items() if not entry.pins}
        assert self.evictable_chunks == sum(entries[key].chunks for key in unpinned), "evictable chunks"
        assert unpinned == {key for key in entries if not self._recency.is_parked(key)}, "parked entries"
        assert len(self._recency) == len(entries) == sum(map(len, self._of_user.values())), "entries"
        assert self.runs == sum(len(entry.runs) for entry in entries.values()), "runs"
        assert all(entry.visible for entry in entries.values()), "visible"

    def _remove(self, key: Identity) -> None:
        entry = self._entries.pop(key)
        entry.visible = False
        mine = self._of_user[key.tenant, key.user]
        mine.discard(key)
        if not mine:
            del self._of_user[key.tenant, key.user]
        self.runs -= len(entry.runs)
        if not entry.pins:
            self.evictable_chunks -= entry.chunks
            self._space.free(entry.runs)
        if self.on_remove is not None:
            self.on_remove(entry)
