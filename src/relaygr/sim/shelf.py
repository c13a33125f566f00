"""What an instance keeps of its users: the real books over prefixes without content."""

from __future__ import annotations

from collections.abc import Callable

from relaygr.cache.interface import LoadPlan, Refused, StorePlan
from relaygr.cache.interface import Reason as RefusalReason
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.cache.tiered import TieredBooks
from relaygr.core.ids import DEFAULT_TENANT, Fingerprint, UserId
from relaygr.core.state import Hit, Ref, Touch
from relaygr.sim.found import Found

_SEED = b""
_REMEMBERED = 65_536
_ZEROS_BYTES = 64 << 20


class Refs:
    """Prefixes of users by number, as short to compare as can be: one digest page, records of one zero byte.

    Prefixes of a user are the beginnings of one another.
    """

    __slots__ = ("_recent", "_zeros", "_zeros_bytes")

    def __init__(self) -> None:
        # By length; whole byte strings, which are compared as such.
        self._zeros: dict[int, memoryview] = {}
        self._zeros_bytes = 0
        self._recent: dict[tuple[int, int, Fingerprint], Ref] = {}

    def of(self, user: int, tokens: int, model_fp: Fingerprint) -> Ref:
        """One that was asked for lately is the same object."""
        key = (user, tokens, model_fp)
        ref = self._recent.get(key)
        if ref is None:
            if len(self._recent) >= _REMEMBERED:
                self._recent.clear()
            ref = self._recent[key] = self._new(user, tokens, model_fp)
        return ref

    def _new(self, user: int, tokens: int, model_fp: Fingerprint) -> Ref:
        return Ref(
            tenant=DEFAULT_TENANT,
            user=UserId(str(user)),
            model_fp=model_fp,
            schema=0,
            anchor=0,
            digests=(_SEED, tokens.to_bytes(4, "little")),
            page_ends=(tokens,),
            records=self._records(tokens),
            record_bytes=1,
            tokens=tokens,
        )

    def _records(self, tokens: int) -> memoryview:
        zeros = self._zeros.get(tokens)
        if zeros is None:
            if self._zeros_bytes >= _ZEROS_BYTES:
                self._zeros.clear()
                self._zeros_bytes = 0
            zeros = self._zeros[tokens] = memoryview(bytes(tokens))
            self._zeros_bytes += tokens
        return zeros


class Shelf:
    """The states of users on one instance; user numbers and token counts in, and the books do the rest."""

    __slots__ = ("_lease_s", "_refs", "_spare_pages", "books", "model_fp")

    def __init__(self, books: TieredBooks, refs: Refs, lease_s: float, model_fp: Fingerprint) -> None:
        self.books, self._refs, self._lease_s = books, refs, lease_s
        self._spare_pages = 0
        self.swap(model_fp)

    def swap(self, model_fp: Fingerprint) -> None:
        """Another build: nothing of the one before is found from now on."""
        self.model_fp = model_fp
        self.books.swap_model(model_fp)

    def ref(self, user: int, tokens: int) -> Ref:
        """The first `tokens` tokens of a user."""
        return self._refs.of(user, tokens, self.model_fp)

    def find(self, user: int, tokens: int) -> Found:
        answer = self.books.lookup(self._refs.of(user, tokens, self.model_fp)) if tokens else None
        return Found(answer.device_end, answer.host) if isinstance(answer, Hit) else Found(0, 0)

    def open(self, user: int, tokens: int, now_s: float) -> tuple[ReadLease | WriteLease | None, int]:
        """The right to read what is there and write the rest, and how much is there; as the engine does it.

        Without room, or beside another writer, everything is computed aside and nothing kept.
        """
        if not tokens:
            return None, 0
        ref = self._refs.of(user, tokens, self.model_fp)
        deadline_s = now_s + self._lease_s
        write = self.books.append(ref, "rank", now_s, deadline_s)
        if isinstance(write, WriteLease):
            self._took(tokens - write.reused_tokens)
            return write, write.reused_tokens
        if write.reason is RefusalReason.ALREADY_STORED:
            lease = self.books.lease(ref, tokens, "rank", now_s, deadline_s)
            if isinstance(lease, ReadLease):
                return lease, tokens
        return None, 0

    def close(
        self, user: int, tokens: int, lease: ReadLease | WriteLease | None, now_s: float, keep: bool = True
    ) -> bool:
        """Let go of what `open` gave; whether all of it is there now."""
        if lease is None:
            return not tokens
        if isinstance(lease, WriteLease):
            if not keep:
                lease.abort()
                return False
            if not lease.publish(now_s):
                return False
            self.books.touch(lease.ref, Touch.APPEND)
            return True
        self.touch(user, tokens)
        lease.release()
        return True

    def touch(self, user: int, tokens: int) -> None:
        """All of it has been read."""
        self.books.touch(self._refs.of(user, tokens, self.model_fp), Touch.HIT)

    def put(self, user: int, tokens: int, now_s: float) -> bool:
        """The first `tokens` tokens have been computed; whether there was room for them."""
        ref = self._refs.of(user, tokens, self.model_fp)
        write = self.books.append(ref, "prefix", now_s, now_s + self._lease_s)
        if isinstance(write, Refused):
            return write.reason is RefusalReason.ALREADY_STORED
        self._took(tokens - write.reused_tokens)
        if not write.publish(now_s):
            return False
        self.books.touch(ref, Touch.APPEND)
        return True

    def hold(self, user: int, tokens: int, until_s: float, now_s: float) -> ReadLease | None:
        """Keep these tokens on the device until released; None if they are not there."""
        ref = self._refs.of(user, tokens, self.model_fp)
        lease = self.books.lease(ref, tokens, "hold", now_s, until_s)
        return lease if isinstance(lease, ReadLease) else None

    def load(self, user: int, tokens: int, now_s: float, deadline_s: float) -> LoadPlan | None:
        ref = self._refs.of(user, tokens, self.model_fp)
        plan = self.books.prepare_load(ref, tokens, now_s, deadline_s)
        self._took(tokens)
        return plan if isinstance(plan, LoadPlan) else None

    def loaded(self, plan: LoadPlan, ok: bool) -> bool:
        """The copy has ended; whether its tokens are on the device now."""
        return self.books.complete_load(plan, ok)

    def short_pages(self, free_share: float) -> int:
        """Pages that are wanted free, if fewer are; else 0."""
        if self._spare_pages > 0:
            return 0
        stats = self.books.stats()
        wanted = int(free_share * stats.total_pages)
        self._spare_pages = stats.free_pages - wanted
        return wanted if self._spare_pages < 0 else 0

    def spill(self, pages: int, worth: Callable[[int, Ref], bool], now_s: float) -> StorePlan | None:
        """Begin to store the user whose state was used longest ago, of those it is worth it for.

        `pages` is what `short_pages` said just now.
        """
        # The first of them will do nearly always, and all of them are many.
        for wanted in (pages + self._spare_pages + 1, pages):
            for ref in self.books.spill_candidates(wanted):
                if worth(int(ref.user), ref):
                    plan = self.books.prepare_store(ref, ref.tokens, now_s)
                    if isinstance(plan, StorePlan):
                        return plan
        return None

    def spilled(self, plan: StorePlan, ok: bool = True) -> bool:
        """The copy has ended; whether the host has it now."""
        return self.books.complete_store(plan, ok)

    def _took(self, tokens: int) -> None:
        """So many tokens at most have taken pages: while some were to spare, nobody need count them."""
        self._spare_pages -= tokens // self.books.page_tokens + 2

    def put_in_host(self, user: int, tokens: int, now_s: float) -> bool:
        """As if the user had been here before and been stored since."""
        if not self.put(user, tokens, now_s):
            return False
        plan = self.books.prepare_store(self._refs.of(user, tokens, self.model_fp), tokens, now_s)
        return isinstance(plan, StorePlan) and self.spilled(plan)

    def sweep(self, now_s: float) -> int:
        """Leases and plans that were never closed; the number of them."""
        return self.books.sweep(now_s)
