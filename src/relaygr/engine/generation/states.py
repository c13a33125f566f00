"""Keys and values of prompts: found, reserved, filled and kept for whoever comes with the same beginning.

The books, pages and tiers are those of rankers' user states. A prompt is written by one request at a time and
read by any number; what is written becomes visible when it is complete, for the next request to go on from.
Of a model with linear layers a recurrent state belongs to it: see `engine.generation.recurrent`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor

from relaygr.cache.chooser import Chooser, Found
from relaygr.cache.digests import head
from relaygr.cache.entry import Identity
from relaygr.cache.interface import Reason, Refused, Stats
from relaygr.cache.lease import ReadLease, WriteLease
from relaygr.cache.speeds import Compute, Link, MeasuredCompute, MeasuredLink, Part
from relaygr.config.host import HostConfig
from relaygr.core.clock import Clock
from relaygr.core.errors import BackendError
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Ref, Touch
from relaygr.engine.choosing import weigh_by
from relaygr.engine.generation.recurrent import StateShelf, WorkingState
from relaygr.engine.tiers import Tiers, format_of
from relaygr.memory.layout import KvLayout
from relaygr.memory.pool import PagePool
from relaygr.memory.recurrent import PromptState
from relaygr.memory.stores import PagedKv
from relaygr.models.decoder.config import DecoderConfig

_HIDDENS = 1024
COPY_BYTES = 2 << 20  # of one chore: a fraction of a millisecond
# Only the proportions of work of different shapes outlive the first measurement.
_FLOPS_PER_MS = 2e7
_LINK_BYTES_PER_S = 2e9


class FinishedKv(PagedKv):
    """A prompt whose keys and values are all there. Its last token is computed again where nobody kept the
    hidden state; what that would write is what stands there, and other requests are reading it."""

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        pass


class RestartedKv(PagedKv):
    """A prompt that is computed again from before the end of its keys and values: those that are there stay,
    as others may be reading them; what a pass would write is what stands there."""

    def __init__(self, pool: PagePool, pages: Sequence[int], tokens: int, there: int) -> None:
        super().__init__(pool, pages, tokens, clean_tail=True, filled=there)
        self._there = there

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        skip = max(self._there - start, 0)
        if skip < len(k):
            super().write(layer, start + skip, k[skip:], v[skip:])


class PromptLease:
    """A request's right to its prompt's pages, from admission to its end; `close` must follow.

    Attributes:
        store: what the model reads and writes. Rows behind the prompt's last may hold anything.
        cached: tokens that need no computing. All only if the last one's hidden state is known.
        hidden: that state, float32 [1, D].
        working: of a model with linear layers, what these keep; it stands behind the cached tokens at first.
        loaded: of these, the ones that were brought from host memory for this request.
        nbytes: of its pages, shared ones included.
    """

    def __init__(
        self,
        states: PromptStates,
        ref: Ref,
        lease: ReadLease | WriteLease,
        store: PagedKv,
        cached: int,
        hidden: Tensor | None = None,
        working: WorkingState | None = None,
    ) -> None:
        self._states, self._lease = states, lease
        self.ref, self.store, self.cached, self.hidden, self.working = ref, store, cached, hidden, working
        self.loaded = 0

    @property
    def whole(self) -> bool:
        """Whether keys and values of all tokens were there."""
        return isinstance(self.store, FinishedKv)

    @property
    def nbytes(self) -> int:
        return len(self._lease.pages) * self._states.layout.page_bytes

    @property
    def state(self) -> PromptState | None:
        """Of linear layers."""
        return None if self.working is None else self.working.state

    def passed(self) -> None:
        """Some more of the prompt is computed."""
        if self.working is not None:
            self.working.passed()

    def complete(self, now_s: float, hidden: Tensor | None = None) -> bool:
        """All rows are written: let others find them; False if they must not, as the user is forgotten."""
        lease, working = self._lease, self.working
        if working is None and (not isinstance(lease, WriteLease) or not lease.cancelled):
            self._states.hiddens.put(self.ref, hidden)
        if isinstance(lease, ReadLease):
            self._states.tiers.books.touch(self.ref, Touch.HIT)
            if working is not None:
                working.complete(False, hidden)
            return True
        if lease.cancelled or not lease.live:
            return False
        reader = self._states.publish(self.ref, lease, now_s)
        if reader is None:
            raise BackendError("the pages of a prompt that was just published are gone")
        self._lease = reader
        if working is not None:
            working.complete(True, hidden)
        return True

    def close(self) -> None:
        """Let go; what was not completed is as if it had never been. Again a no-op."""
        self._lease.release()
        if self.working is not None:
            self.working.close()


class Hiddens:
    """The last hidden state of prompts that came lately, by content: who comes again needs no prefill.

    Bounded by `limit`; what was not asked for longest leaves first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[Tenant, UserId, int, bytes, int], Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, ref: Ref) -> Tensor | None:
        """float32 [1, D]."""
        key = self._key(ref)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, ref: Ref, hidden: Tensor | None) -> None:
        """None keeps what there is."""
        if hidden is not None:
            self._kept[self._key(ref)] = hidden.clone()
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)

    def forget(self, tenant: Tenant, user: UserId) -> None:
        for key in [key for key in self._kept if key[:2] == (tenant, user)]:
            del self._kept[key]

    @staticmethod
    def _key(ref: Ref) -> tuple[Tenant, UserId, int, bytes, int]:
        return ref.tenant, ref.user, ref.anchor, ref.digests[-1], ref.tokens


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why a prompt cannot be had now."""

    reason: Reason


class PromptStates:
    """All methods but `readable` run under one lock of the caller's.

    Args:
        layout: of the decoder's keys and values.
        cost: what computing tokens costs, in proportion; refined by what is measured.
        lease_s: longer than any request lasts.
        shelf: for a model with linear layers: called with tokens of a prompt that are readable, and how to
            discard what is stored of one, makes the shelf of its recurrent states.
    """

    def __init__(
        self,
        layout: KvLayout,
        device_bytes: int,
        lease_s: float,
        host: HostConfig,
        cost: Compute,
        clock: Clock,
        shelf: Callable[[Callable[[Ref], int], Callable[[Identity], None]], StateShelf] | None = None,
    ) -> None:
        self.layout, self._clock, self._lease_s = layout, clock, lease_s
        self.hiddens = Hiddens(_HIDDENS)
        link, measured = MeasuredLink(Link(_LINK_BYTES_PER_S)), host.load == "measured"
        self._chooser = Chooser(link, MeasuredCompute(cost), measured=measured)
        weigh = weigh_by(self._chooser, format_of(host, layout.dtype).token_bytes(layout))
        self.tiers = Tiers(layout, device_bytes, lease_s, host, clock, weigh=weigh)
        self._free_share = host.clean_target
        self.shelf: StateShelf | None = None
        if shelf is not None:
            books = self.tiers.books
            self.shelf = shelf(lambda ref: self.tiers.readable(ref).near, books.discard)
            books.on_less = self.shelf.has_less

    @property
    def pages(self) -> int:
        """Of the device, all together."""
        return self.tiers.pool.pages

    def near(self, refs: Sequence[Ref]) -> int:
        """Tokens of a prompt that are not to be computed; may be asked from any thread."""
        return self._reusable(refs[0], self.tiers.readable(refs[0]).near)

    def take(self, refs: Sequence[Ref]) -> PromptLease | NoRoom:
        """The longest beginning that is stored, and room for the rest."""
        found = self._take(refs)
        self._settle()
        return found

    def _take(self, refs: Sequence[Ref]) -> PromptLease | NoRoom:
        now = self._clock.now_s()
        self.tiers.sweep(now)
        found: PromptLease | NoRoom = NoRoom(Reason.NOT_RESIDENT)
        for ref in refs:
            loaded = self._load(ref, now)
            found = self._open(ref, now)
            if isinstance(found, PromptLease):
                found.loaded = min(loaded, found.cached)
                return found
            if found.reason is not Reason.BUSY:
                return found
        return found

    def publish(self, ref: Ref, lease: WriteLease, now_s: float) -> ReadLease | None:
        """Make a prompt visible and keep it readable; None if it could not be."""
        books = self.tiers.books
        published = lease.publish(now_s)
        self._settle()
        if not published:
            return None
        books.touch(ref, Touch.APPEND)
        reader = books.lease(ref, ref.tokens, "generate", now_s, now_s + self._lease_s)
        return reader if isinstance(reader, ReadLease) else None

    def part(self, ref: Ref, limit_tokens: int) -> Ref:
        """Of a prompt, what to encode next: about so many tokens behind what is there, in whole pages, and
        up to where a recurrent state can be gone on from.
        """
        device = self._reusable(ref, self.tiers.readable(ref).device)
        if self.shelf is None:
            return head(ref, device, device + limit_tokens)
        size = max(self.shelf.rule.grain, self.layout.page_tokens)  # both powers of two
        return head(ref, device, (device + max(limit_tokens, size)) // size * size)

    def computed(self, parts: Sequence[tuple[int, int]], seconds: float) -> None:
        """Parts of prompts, (new, cached) tokens each, were computed in so long."""
        self._chooser.compute.observe([Part(new, cached, 0) for new, cached in parts], 1000 * seconds)

    def drop(self, ref: Ref) -> None:
        """Nothing of this prompt is to be used any more: it led to numbers that are none."""
        self._forget(ref.tenant, ref.user)
        self.tiers.books.forget(ref.tenant, ref.user)

    def forget(self, tenant: Tenant, user: UserId) -> int:
        self._forget(tenant, user)
        return self.tiers.forget((tenant, user))

    def _forget(self, tenant: Tenant, user: UserId) -> None:
        self.hiddens.forget(tenant, user)
        if self.shelf is not None:
            self.shelf.forget(tenant, user)

    def spill(self) -> bool:
        """Copy a part of what was used longest ago to host memory; False if there is nothing to copy."""
        tiers, more = self.tiers, False
        if tiers.wants_spill(self._free_share):
            more = tiers.spill_step(self._free_share, COPY_BYTES, self._clock.now_s(), lambda _: True)
            self._settle()
        return more or (self.shelf is not None and self.shelf.spill(self._free_share))

    def stats(self) -> Stats:
        """Pages by state; free + pinned + evictable = total."""
        return self.tiers.stats()

    @property
    def decisions(self) -> tuple[tuple[str, int], ...]:
        """So far, by what was done about the tokens of the host."""
        return tuple((way.value, count) for way, count in self._chooser.decisions.items())

    def _load(self, ref: Ref, now_s: float) -> int:
        """Bring from the host what is quicker copied than computed; returns the tokens that came."""
        stored = self.tiers.readable(ref)
        if stored.host <= stored.device:
            return 0
        tiers, page = self.tiers, self.layout.page_tokens
        device, host = self._reusable(ref, stored.device), self._reusable(ref, stored.host)
        if host <= device:
            return 0
        token_bytes = tiers.host_token_bytes
        if self.shelf is not None and self.shelf.in_host(ref, stored.host):
            token_bytes += self.shelf.state_bytes // (host - device)
        wanted = self._chooser.choose(Found(ref.tokens, device, host, 0, token_bytes, page)).tokens
        if wanted <= device:
            return 0
        if self.shelf is not None:
            wanted = host  # there is no state in between
        began_s = self._clock.now_s()
        came = tiers.load(ref, now_s, wanted)
        took_ms = 1000 * (self._clock.now_s() - began_s)
        self._chooser.link.observe(came * tiers.host_token_bytes, 1, took_ms)
        return came

    def _open(self, ref: Ref, now_s: float) -> PromptLease | NoRoom:
        if self.shelf is None:
            return self._leased(ref, now_s, None)
        working = self.shelf.begin(ref, self.tiers.readable(ref).device)
        if working is None:
            return NoRoom(Reason.PINNED)
        with ExitStack() as undo:
            undo.callback(working.close)
            found = self._leased(ref, now_s, working)
            if isinstance(found, PromptLease):
                undo.pop_all()
        return found

    def _leased(self, ref: Ref, now_s: float, working: WorkingState | None) -> PromptLease | NoRoom:
        books, pool, until_s = self.tiers.books, self.tiers.pool, now_s + self._lease_s
        if self.tiers.readable(ref).device >= ref.tokens:
            read = books.lease(ref, ref.tokens, "generate", now_s, until_s)
            if isinstance(read, ReadLease):
                store: PagedKv = FinishedKv(pool, read.pages, ref.tokens, clean_tail=True)
                hidden = self.hiddens.get(ref) if working is None else working.hidden
                cached = ref.tokens - (hidden is None)
                return self._begun(PromptLease(self, ref, read, store, cached, hidden, working), ref.tokens)
        write = books.append(ref, "generate", now_s, until_s)
        if isinstance(write, Refused):
            return NoRoom(write.reason)
        # Only the last page keeps rows that nobody writes, and copies to the host take whole pages.
        pool.zero([page for page in write.fresh if page == write.pages[-1]])
        for copy in write.copies:
            pool.copy(copy.src, copy.dst, copy.tokens)
        reused = write.reused_tokens
        # Attention reads no row behind the prompt's last, so that pages need not be clean to be views.
        store = RestartedKv(pool, write.pages, ref.tokens, reused)
        return self._begun(PromptLease(self, ref, write, store, reused, None, working), reused)

    def _begun(self, lease: PromptLease, tokens: int) -> PromptLease:
        """`tokens`: whose keys and values are there."""
        if self.shelf is not None and lease.working is not None:
            lease.cached = lease.working.reused
            self.shelf.began(lease.working, tokens)
        return lease

    def _reusable(self, ref: Ref, tokens: int) -> int:
        """Of the first `tokens`, whose keys and values are there, those that need no computing."""
        return tokens if self.shelf is None else self.shelf.reusable(ref, tokens)

    def _settle(self) -> None:
        """Recurrent states go where their keys and values are gone."""
        if self.shelf is not None:
            self.shelf.settle()


def decoder_cost(config: DecoderConfig) -> Compute:
    """What a prompt token costs by itself, and with each key that it sees."""
    size, query, kv = config.hidden_size, config.query_size, config.kv_size
    dense = 2 * size * (config.full_layers * (config.query_rows + query + 2 * kv))
    dense += 2 * size * config.num_layers * 3 * config.mlp_size
    if config.linear is not None:
        linear = config.linear
        # Read, corrected, written: three products with the state a token.
        states = 6 * linear.value_size * linear.key_dim
        dense += linear.layers * (2 * size * (linear.inputs + linear.value_size) + states)
    pair = config.full_layers * 4 * query
    return Compute(t1_ms=dense / _FLOPS_PER_MS, t2_ms=pair / _FLOPS_PER_MS)
