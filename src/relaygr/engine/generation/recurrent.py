"""Recurrent states of prompts beside their keys and values: one for each request, and snapshots of users.

A state stands behind one number of tokens and cannot be cut back, so that a prompt goes on from the last
snapshot of its own beginning. Nothing is reused that does not have keys and values as well: snapshots behind
keys and values that are gone go too, and where the last snapshot has left for others, so do keys and values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from torch import Tensor

from relaygr.cache.digests import cut
from relaygr.cache.entry import Identity, identity
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Ref
from relaygr.memory.recurrent import RecurrentLayout
from relaygr.memory.state_pool import PooledState, StatePool
from relaygr.memory.state_snapshots import SnapshotRule, StateSnapshot, StateSnapshots

Restart = Literal["end", "snapshot", "start"]


@dataclass(frozen=True, slots=True)
class StateStats:
    """Bytes of states now; counters since the start.

    Attributes:
        free, working, kept: of the device: nobody's, of requests, of snapshots.
        host_free, host_kept: of host memory.
        snapshots: in both.
        restarts: requests and prompts encoded ahead, by what they went on from.
        saved_tokens: that a snapshot stood behind when it was gone on from.
        repeated_tokens: computed again though their keys and values were there, as no snapshot stood so far.
        left: snapshots that left for the room of others.
    """

    free: int
    working: int
    kept: int
    host_free: int
    host_kept: int
    snapshots: int
    restarts: tuple[tuple[Restart, int], ...]
    saved_tokens: int
    repeated_tokens: int
    left: int


_RESTARTS: tuple[Restart, ...] = ("end", "snapshot", "start")
NO_STATES = StateStats(0, 0, 0, 0, 0, 0, tuple((source, 0) for source in _RESTARTS), 0, 0, 0)


@dataclass(slots=True, eq=False)
class _Kept:
    """A prompt's snapshots, the content whose keys and values they belong to, and when it was used last."""

    snapshots: StateSnapshots
    ref: Ref
    used: int


class WorkingState:
    """The state of one request; `close` must follow, once nothing computes with it.

    Attributes:
        state: moves on with the prompt.
        reused: tokens that it stood behind at first.
        hidden: of the prompt's last token, where nothing is to be computed.
    """

    def __init__(self, shelf: StateShelf, ref: Ref, state: PooledState, hidden: Tensor | None) -> None:
        self._shelf, self.ref, self.state, self.hidden = shelf, ref, state, hidden
        self.reused = state.tokens
        self.taken = shelf.new_snapshots(ref)  # on the way; nobody finds them yet
        self._complete = self._closed = False

    def passed(self) -> None:
        """The state stands further behind: copy it, if that is due and there is room."""
        self._shelf.snap(self)

    def complete(self, replaced: bool, hidden: Tensor | None) -> None:
        """Keys and values can be found: so can the snapshots.

        Args:
            replaced: by what was found before, whatever departs from this prompt is gone.
            hidden: of its last token, if it was computed.
        """
        self._complete = True
        self.hidden = self.hidden if hidden is None else hidden.clone()
        self._shelf.publish(self, replaced)

    def close(self) -> None:
        """The state becomes the prompt's end for who comes again; what was not completed is gone."""
        if not self._closed:
            self._closed = True
            self._shelf.close(self, self._complete)


class StateShelf:
    """The recurrent states of one generator.

    All methods but `reusable` run where the books run.

    Args:
        device_bytes, host_bytes: what states may take of each.
        readable: tokens of a prompt whose keys and values are there, on the device or in host memory.
        discard: called with whose last snapshot has left: keys and values alone are of no use.

    Attributes:
        device, host: their memory; that of the host may have no room at all.
    """

    def __init__(
        self,
        layout: RecurrentLayout,
        rule: SnapshotRule,
        device_bytes: int,
        host_bytes: int,
        readable: Callable[[Ref], int],
        discard: Callable[[Identity], None],
    ) -> None:
        self.rule = rule
        self.device, self.host = StatePool(layout, device_bytes), StatePool(layout, host_bytes)
        self._readable, self._discard = readable, discard
        self._kept: dict[Identity, _Kept] = {}
        # Of each memory, whose main and whose spare snapshots lie there; least recently used first.
        self._mains = {pool: OrderedDict[Identity, None]() for pool in (self.device, self.host)}
        self._spares = {pool: OrderedDict[Identity, None]() for pool in (self.device, self.host)}
        self._less: set[Identity] = set()
        self._clock = self._saved = self._repeated = self._left = 0
        self._restarts = dict.fromkeys(_RESTARTS, 0)

    @property
    def state_bytes(self) -> int:
        return self.device.state_bytes

    def new_snapshots(self, ref: Ref) -> StateSnapshots:
        rule = self.rule
        return StateSnapshots(
            rule.step, ref.model_fp, most=rule.most, grain=rule.grain, on_leave=lambda one: _release(one)
        )

    def reusable(self, ref: Ref, tokens: int) -> int:
        """Of the first `tokens`, whose keys and values are there, those that a state stands behind.

        All of `ref` only if the hidden state of its last token is known as well. From any thread.
        """
        found = self._find(ref, tokens)
        return 0 if found is None else found.tokens

    def in_host(self, ref: Ref, tokens: int) -> bool:
        """Whether what is gone on from lies in host memory."""
        found = self._find(ref, tokens)
        return found is not None and _pool(found) is self.host

    def begin(self, ref: Ref, tokens: int) -> WorkingState | None:
        """A state behind what `reusable` says; None if there is no room for one now."""
        found, key = self._find(ref, tokens), identity(ref)
        if found is not None:
            self._touch(key)
        state = self._room(self.device, spare=False, safe=found)
        if state is not None:
            if found is None:
                state.clear()
            else:
                state.copy_from(found.state)
        elif found is not None and _pool(found) is self.device:
            # Nothing else is to be had: what would be copied is used itself.
            state = _state(self._kept[key].snapshots.take_out(found.tokens))
            self._sort(key)
        if state is None:
            return None
        return WorkingState(self, ref, state, found.hidden if found and found.tokens == ref.tokens else None)

    def began(self, working: WorkingState, tokens: int) -> None:
        """A request goes on from there; keys and values were there of the first `tokens`."""
        reused = working.reused
        self._saved += reused
        self._repeated += tokens - reused
        self._restarts["end" if working.hidden is not None else "snapshot" if reused else "start"] += 1

    def snap(self, working: WorkingState) -> None:
        state, ref = working.state, working.ref
        if not self.rule.due(state.tokens, ref.tokens) or self._has(ref, state.tokens):
            return
        room = self._room(self.device, True, None)
        if room is None and state.tokens == self.rule.last(ref.tokens):
            # What a longer prompt will go on from is worth a spare one of its own, or else anybody's.
            for own in working.taken:
                working.taken.remove(own.tokens)
                break
            room = self._room(self.device, False, None)
        if room is not None:
            room.copy_from(state)
            working.taken.put(StateSnapshot(room, _digest(ref, state.tokens), ref.model_fp))

    def publish(self, working: WorkingState, replaced: bool) -> None:
        ref, key = working.ref, identity(working.ref)
        if self._readable(ref) < ref.tokens:
            return  # forgotten meanwhile; what was taken is given back at the end
        kept = self._kept.get(key)
        if kept is not None and replaced:
            kept.ref = ref
            kept.snapshots.drop_unless(ref.tokens, lambda at: _digest(ref, at))
        for snapshot in working.taken:
            self._put(key, ref, working.taken.take_out(snapshot.tokens))
        if key in self._kept:
            self._touch(key)

    def close(self, working: WorkingState, complete: bool) -> None:
        ref, state, key = working.ref, working.state, identity(working.ref)
        for snapshot in working.taken:
            working.taken.remove(snapshot.tokens)
        kept = self._kept.get(key)
        useful = complete and state.tokens == ref.tokens and self._readable(ref) >= ref.tokens
        if ref.tokens % self.rule.grain:
            newest = kept is None or kept.ref.tokens <= ref.tokens
            useful = useful and newest and working.hidden is not None
        if useful:
            self._put(key, ref, StateSnapshot(state, ref.digests[-1], ref.model_fp, working.hidden))
            self._touch(key)
        else:
            state.release()

    def has_less(self, key: Identity) -> None:
        """Some keys and values are gone; `settle` looks what that means, once the books are at rest."""
        self._less.add(key)

    def settle(self) -> None:
        """Nothing stands behind keys and values that are gone."""
        while self._less:
            key = self._less.pop()
            kept = self._kept.get(key)
            if kept is not None:
                kept.snapshots.drop(self._readable(kept.ref))
                self._sort(key)

    def forget(self, tenant: Tenant, user: UserId) -> None:
        """Drop a user's snapshots; keys and values are somebody else's to drop."""
        for key in [key for key in self._kept if (key.tenant, key.user) == (tenant, user)]:
            self._kept[key].snapshots.drop(0)
            self._sort(key)

    def spill(self, free_share: float) -> bool:
        """Move one of the snapshots used longest ago to host memory, where fewer states are free than this
        share; False if none was."""
        if self.device.free >= max(int(free_share * self.device.states), 1) or not self.host.states:
            return False
        key = next(chain(self._mains[self.device], self._spares[self.device]), None)
        if key is None:
            return False
        kept = self._kept[key]
        first = kept.snapshots.main
        moving = next(one for one in (first, *kept.snapshots) if one and _pool(one) is self.device)
        room = self._room(self.host, moving is not first, moving, older=kept.used)
        if room is None:
            return False
        room.copy_from(moving.state)
        kept.snapshots.put(StateSnapshot(room, moving.digest, moving.version, moving.hidden))
        self._sort(key)
        return True

    def stats(self) -> StateStats:
        size, pools = self.state_bytes, {self.device: 0, self.host: 0}
        for kept in self._kept.values():
            for snapshot in kept.snapshots:
                pools[_pool(snapshot)] += 1
        device, host = self.device, self.host
        return StateStats(
            free=size * device.free,
            working=size * (device.states - device.free - pools[device]),
            kept=size * pools[device],
            host_free=size * host.free,
            host_kept=size * pools[host],
            snapshots=sum(pools.values()),
            restarts=tuple(self._restarts.items()),
            saved_tokens=self._saved,
            repeated_tokens=self._repeated,
            left=self._left,
        )

    def audit(self, working: int = 0) -> None:
        """Check the books against a count from scratch; linear, for tests.

        Args:
            working: states that requests hold, and snapshots that they have taken.
        """
        for pool in (self.device, self.host):
            mains = {k for k, kept in self._kept.items() if (m := kept.snapshots.main) and _pool(m) is pool}
            assert set(self._mains[pool]) == mains, "main snapshots"
            spares = {
                key
                for key, kept in self._kept.items()
                if any(_pool(one) is pool and one is not kept.snapshots.main for one in kept.snapshots)
            }
            assert set(self._spares[pool]) == spares, "spare snapshots"
            held = [one for kept in self._kept.values() for one in kept.snapshots if _pool(one) is pool]
            own = working if pool is self.device else 0
            assert len(held) + own + pool.free == pool.states, "states"
        for kept in self._kept.values():
            reach = max(one.tokens for one in kept.snapshots)
            assert self._readable(kept.ref) >= reach, "a state without keys and values"

    def _find(self, ref: Ref, tokens: int) -> StateSnapshot | None:
        kept = self._kept.get(identity(ref))
        if kept is None or not tokens:
            return None
        whole = ref.tokens
        return kept.snapshots.before(tokens, ref.model_fp, lambda at: _digest(ref, at), whole)

    def _has(self, ref: Ref, tokens: int) -> bool:
        kept = self._kept.get(identity(ref))
        found = (
            None if kept is None else kept.snapshots.before(tokens, ref.model_fp, lambda n: _digest(ref, n))
        )
        return found is not None and found.tokens == tokens

    def _room(
        self, pool: StatePool, spare: bool, safe: StateSnapshot | None, older: int | None = None
    ) -> PooledState | None:
        """A state of `pool`, if need be in place of a spare snapshot, or of any unless it is for a `spare`.

        `safe` stays, and with `older` so does what was used since then.
        """
        found = pool.take()
        if found is not None:
            return found
        for main in (False, True)[: 1 if spare else 2]:
            for key in (self._mains if main else self._spares)[pool]:
                kept = self._kept[key]
                if older is not None and kept.used >= older:
                    break
                first = kept.snapshots.main
                for one in kept.snapshots:
                    if _pool(one) is pool and one is not safe and (one is first) == main:
                        self._leave(key, one)
                        return pool.take()
        return None

    def _leave(self, key: Identity, snapshot: StateSnapshot) -> None:
        self._left += 1
        self._kept[key].snapshots.remove(snapshot.tokens)
        self._sort(key)
        if key not in self._kept:
            self._discard(key)

    def _put(self, key: Identity, ref: Ref, snapshot: StateSnapshot) -> None:
        kept = self._kept.get(key)
        if kept is None:
            self._clock += 1
            kept = self._kept[key] = _Kept(self.new_snapshots(ref), ref, self._clock)
        if kept.ref.tokens < ref.tokens:
            kept.ref = ref
        kept.snapshots.put(snapshot)

    def _touch(self, key: Identity) -> None:
        self._clock += 1
        self._kept[key].used = self._clock
        self._sort(key, recent=True)

    def _sort(self, key: Identity, recent: bool = False) -> None:
        """Put a prompt where it belongs now that its snapshots have changed, or it was used."""
        kept = self._kept.get(key)
        main = None if kept is None else kept.snapshots.main
        if kept is not None and main is None:
            del self._kept[key]
        pools = [] if kept is None else [(_pool(one), one is main) for one in kept.snapshots]
        for orders, of_main in ((self._mains, True), (self._spares, False)):
            for pool, order in orders.items():
                if (pool, of_main) not in pools:
                    order.pop(key, None)
                elif recent or key not in order:
                    order[key] = None
                    order.move_to_end(key)


def _digest(ref: Ref, tokens: int) -> bytes:
    return cut(ref, tokens).digests[-1]


def _state(snapshot: StateSnapshot) -> PooledState:
    assert isinstance(snapshot.state, PooledState)
    return snapshot.state


def _pool(snapshot: StateSnapshot) -> StatePool:
    return _state(snapshot).pool


def _release(snapshot: StateSnapshot) -> None:
    _state(snapshot).release()
