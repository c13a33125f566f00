"""The books of the host tier: which chunks hold whose state, and who leaves when room is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from relaygr.cache.digests import cut, longest_match
from relaygr.cache.entry import Identity, identity
from relaygr.cache.interface import Cause, HostRun, PageSum
from relaygr.cache.policies.lru import Lru
from relaygr.cache.policy import Policy, Victim, Weight
from relaygr.cache.runs import Run, RunAllocator, joined, split
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Ref

# Entries that fill memory to the last chunk are soon in pieces of one chunk each; one part in so many stays
# free as long as somebody can be evicted, and most entries then lie in one run.
HEADROOM = 20
# Where entries lie in more runs than this on average (many are cut, or grow in place, or memory is small), up
# to so many times that part stays free: free stretches then meet before they are taken.
FEW_RUNS, ROOMY = 1.1, 3
MANY_RUNS = 1.15  # and from here on an entry that cannot grow in its place is better stored anew


@dataclass(slots=True, eq=False)
class HostEntry:
    """One stored version of a user's state, from token 0 on; `HostBooks` alone makes it longer or shorter.

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


Weigh = Callable[[int, int], Weight]  # of an entry, from its tokens and its bytes


def weigh_by_length(tokens: int, nbytes: int) -> Weight:
    """For as long as no speed was measured: attention takes as long as the rest of a layer at 8,192 tokens,
    and a load nothing.
    """
    return Weight(nbytes, tokens, tokens + tokens * tokens / 8192, 0.0)


class HostBooks:
    """Identity -> entry, over `chunks` chunks of `chunk_tokens` tokens; a policy says who leaves.

    Changes: chunks leave the free set through `reserve` and come back through `give_back`, or when their
    entry has left and nobody reads it any more.
    "No" is None, and then nothing changed.
    """

    def __init__(
        self,
        chunks: int,
        chunk_tokens: int,
        layout_id: str,
        *,
        page_tokens: int = 1,
        chunk_bytes: int = 1,
        policy: Policy[Identity] | None = None,
        weigh: Weigh = weigh_by_length,
        on_leave: Callable[[Identity], None] | None = None,
    ) -> None:
        """Empty books.

        Args:
            page_tokens: of the pages that checksums are of; chunks are whole pages.
            chunk_bytes: of host memory.
            policy: an empty one; the least recently used leaves without.
            weigh: what the policy is told of an entry.
            on_leave: is told each identity of which less is here than before, unless it was replaced.
        """
        self.chunk_tokens, self.layout_id = chunk_tokens, layout_id
        self._page_tokens, self._chunk_bytes = page_tokens, chunk_bytes
        self._policy: Policy[Identity] = Lru(chunks * chunk_bytes) if policy is None else policy
        self._weigh, self._on_leave = weigh, on_leave
        self._space = RunAllocator(chunks)
        self._least_spare = self._spare = chunks // HEADROOM
        self._entries: dict[Identity, HostEntry] = {}
        self._of_user: dict[tuple[Tenant, UserId], set[Identity]] = {}
        self.evictable_chunks = 0
        self.departed = dict.fromkeys(Cause, 0)
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

    @property
    def evictions(self) -> int:
        """Entries that left whole because others needed their place."""
        return self.departed[Cause.ROOM]

    def chunks_for(self, tokens: int) -> int:
        return -(-tokens // self.chunk_tokens)

    def get(self, key: Identity) -> HostEntry | None:
        return self._entries.get(key)

    def entries(self) -> Iterator[HostEntry]:
        """In the order in which they came; nothing may change meanwhile."""
        return iter(self._entries.values())

    def match(self, ref: Ref) -> int:
        """Tokens at the head of `ref` that an entry of this layout holds."""
        if not self._entries:
            return 0
        entry = self._entries.get(identity(ref))
        if entry is None or entry.layout_id != self.layout_id:
            return 0
        return longest_match(entry.ref, ref)

    def keys_of(self, tenant: Tenant, user: UserId) -> list[Identity]:
        return list(self._of_user.get((tenant, user), ()))

    def keys_of_other_models(self, model_fp: Fingerprint) -> list[Identity]:
        return [key for key in self._entries if key.model_fp != model_fp]

    def touch(self, key: Identity) -> None:
        """A visit, wherever the state is that it found."""
        self._policy.touch(key)

    def is_stuck(self, key: Identity, tokens: int) -> bool:
        """Whether entries lie in many runs, and this one could grow to so many tokens only by one more."""
        entry = self._entries.get(key)
        if entry is None or self.runs <= MANY_RUNS * len(self._entries) or not self._least_spare:
            return False
        return self.chunks_for(tokens) > entry.chunks and not self._space.is_free(entry.runs[-1].end)

    def reserve(self, tokens: int, behind: HostEntry | None = None) -> tuple[Run, ...] | None:
        """Chunks for `tokens` tokens, which are the caller's until `put`, `extend` or `give_back`.

        Those that the entry `behind`, which must be pinned, has already are not counted, and the first ones
        follow its last run if they are free.
        Evicts the shortfall, and what keeps the headroom free if there is somebody to evict.
        """
        need = self.chunks_for(tokens) - (behind.chunks if behind is not None else 0)
        if need <= 0:
            return ()
        if need > self.free_chunks + self.evictable_chunks:
            return None
        self._adapt_spare()
        while self.free_chunks < need + self._spare:
            victim = self._policy.evict()
            if victim is None:
                break
            self._evict(victim)
        return self._space.take(need, after=behind.runs[-1].end if behind is not None else None)

    def give_back(self, runs: tuple[Run, ...]) -> None:
        self._space.free(runs)

    def put(self, entry: HostEntry) -> None:
        """Make `entry`, on reserved chunks, the one of its identity; the one before leaves."""
        key = identity(entry.ref)
        if key in self._entries:
            self._policy.remove(key)
            self._remove(key)
        entry.visible = True
        self._entries[key] = entry
        self._of_user.setdefault((key.tenant, key.user), set()).add(key)
        self._policy.insert(key, self._weight(entry))
        self.evictable_chunks += entry.chunks
        self.runs += len(entry.runs)
        self._tell(self.on_put, entry)

    def extend(self, entry: HostEntry, ref: Ref, runs: tuple[Run, ...], sums: tuple[PageSum, ...]) -> None:
        """`entry`, which is pinned, now holds all of `ref`, whose head it held, on further reserved chunks.

        `sums` stand for the pages from the first of them on.
        """
        assert entry.visible, "an entry that left cannot grow"
        assert entry.pins, "chunks of an entry that is not pinned count as evictable"
        kept = tuple(old for old in entry.sums if not sums or old.page < sums[0].page)
        self._tell(self.on_remove, entry)
        self.runs -= len(entry.runs)
        entry.ref, entry.runs, entry.sums = ref, joined(entry.runs, runs), kept + sums
        self.runs += len(entry.runs)
        self._policy.insert(identity(ref), self._weight(entry))
        self._tell(self.on_put, entry)

    def shrink(self, key: Identity, tokens: int) -> None:
        """Keep the first `tokens` tokens of an entry, whole pages; one that is being read is dropped."""
        entry = self._entries[key]
        if entry.pins or not tokens:
            self.drop(key)
            return
        self._tell(self.on_remove, entry)
        before = entry.chunks
        kept, freed = split(entry.runs, self.chunks_for(tokens))
        self.runs += len(kept) - len(entry.runs)
        entry.ref, entry.runs = cut(entry.ref, tokens), kept
        entry.sums = tuple(one for one in entry.sums if one.page * self._page_tokens < tokens)
        self.evictable_chunks -= before - entry.chunks
        self._space.free(freed)
        self._policy.insert(key, self._weight(entry))
        self._tell(self.on_put, entry)
        self._left(key)

    def drop(self, key: Identity, cause: Cause | None = None) -> None:
        """Nobody finds the entry from now on; readers keep its chunks until they let go.

        With a `cause` it is counted as one that left for good.
        """
        if cause is not None:
            self.departed[cause] += 1
        self._policy.remove(key)
        self._remove(key)
        self._left(key)

    def forget(self, tenant: Tenant, user: UserId) -> list[Identity]:
        """Drop the user's entries, which are returned; and nothing of the user counts any more.

        Linear in what the policy remembers of entries that left.
        """
        keys = self.keys_of(tenant, user)
        for key in keys:
            self.drop(key, Cause.FORGOTTEN)
        gone = [key for key in self._policy.remembered() if (key.tenant, key.user) == (tenant, user)]
        for key in gone:
            self._policy.forget(key)
        return keys

    def pin(self, entry: HostEntry) -> None:
        if not entry.pins:
            self._policy.park(identity(entry.ref))
            self.evictable_chunks -= entry.chunks
        entry.pins += 1

    def unpin(self, entry: HostEntry) -> None:
        assert entry.pins > 0, "unpinned more often than pinned"
        entry.pins -= 1
        if entry.pins:
            return
        if entry.visible:
            self._policy.unpark(identity(entry.ref))
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
        assert all(key in self._policy for key in entries), "entries that the policy does not know"
        assert len(self._policy) == len(entries) == sum(map(len, self._of_user.values())), "entries"
        assert self.runs == sum(len(entry.runs) for entry in entries.values()), "runs"
        assert all(entry.visible for entry in entries.values()), "visible"

    def _adapt_spare(self) -> None:
        """By one chunk at a time, so that no single request has to evict for many."""
        if self.runs > FEW_RUNS * len(self._entries):
            self._spare = min(self._spare + 1, ROOMY * self._least_spare)
        else:
            self._spare = max(self._spare - 1, self._least_spare)

    def _weight(self, entry: HostEntry) -> Weight:
        return self._weigh(entry.tokens, entry.chunks * self._chunk_bytes)

    def _evict(self, victim: Victim[Identity]) -> None:
        """The entry leaves, or all of it but the chunks of the tokens that it keeps."""
        keep = self.chunks_for(victim.keep_tokens) * self.chunk_tokens
        if not keep:
            self._remove(victim.key)
            self.departed[Cause.ROOM] += 1
            self._left(victim.key)
        elif keep < self._entries[victim.key].tokens:
            self.departed[Cause.PART] += 1
            self.shrink(victim.key, keep)

    @staticmethod
    def _tell(whom: Callable[[HostEntry], None] | None, entry: HostEntry) -> None:
        if whom is not None:
            whom(entry)

    def _left(self, key: Identity) -> None:
        if self._on_leave is not None:
            self._on_leave(key)

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
        self._tell(self.on_remove, entry)
