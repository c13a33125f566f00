"""Live prefixes: their bytes against a bound, who still waits for them, and when each may leave."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from typing import Generic

from relaygr.relay.hold import Cause, Hold, K, Left, State
from relaygr.relay.live import LiveBytes

__all__ = ["Cause", "HoldBook", "Left", "State"]

_EXPIRED_REMEMBERED = 4096


class HoldBook(Generic[K]):
    """What is reserved, produced, ready or pinned for requests on their way.

    Each admitted signal of a key is a *claim* on its prefix for `t_life_s`; each ranking that pins it, or
    that ends without it (`release`), takes the claim away that ends first. A prefix stays until no claim and
    no pin is left; no pressure removes one that is READY earlier, except `forget`.
    `live_bytes` never exceeds `bound_bytes`.
    "No" is False or None, and then nothing changed. A call with the generation of a prefix that has left is
    refused. Cost: O(log n). Not for several threads.
    """

    def __init__(self, bound_bytes: int, t_life_s: float) -> None:
        """Empty; `t_life_s` may be set later, for claims from then on."""
        self.t_life_s = t_life_s
        self._live = LiveBytes(bound_bytes)
        self._holds: dict[K, Hold] = {}
        self._next = 0
        # Ends of claims: (end, tie, key, generation); those of prefixes that left are skipped.
        self._ends: list[tuple[float, int, K, int]] = []
        self._ends_limit = 64
        self._expired: OrderedDict[K, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holds)

    @property
    def live_bytes(self) -> int:
        return self._live.total

    @property
    def bound_bytes(self) -> int:
        return self._live.bound

    @property
    def limit_bytes(self) -> int:
        """What reservations must stay within: the bound, or a lower one that is proposed."""
        return self._live.limit

    def propose(self, bound_bytes: int) -> bool:
        """Another bound, see `LiveBytes.propose`; nothing leaves for it."""
        return self._live.propose(bound_bytes)

    def by_state(self) -> dict[State, int]:
        """Live bytes."""
        return self._live.by_state()

    def counts(self) -> dict[State, int]:
        """Live prefixes."""
        return self._live.counts()

    def state(self, key: K) -> State | None:
        hold = self._holds.get(key)
        return None if hold is None else hold.state

    def generation(self, key: K) -> int | None:
        """Unique to this life of the key."""
        hold = self._holds.get(key)
        return None if hold is None else hold.generation

    def claims(self, key: K) -> int:
        """Requests that may still rank; at 0, a production that nobody expects to reuse can stop."""
        hold = self._holds.get(key)
        return 0 if hold is None else len(hold.claims)

    def pins(self, key: K) -> int:
        hold = self._holds.get(key)
        return 0 if hold is None else hold.pins

    def fits(self, key: K, nbytes: int) -> bool:
        """Whether `reserve` would succeed."""
        hold = self._holds.get(key)
        if hold is None:
            return self._live.fits(nbytes)
        growth = nbytes - hold.nbytes
        return not hold.forgotten and (growth <= 0 or self._live.fits(growth))

    def reserve(self, key: K, nbytes: int, now_s: float) -> bool:
        """Claim the prefix for an admitted signal, and reserve its bytes, or those it lacks if it is live.

        A READY prefix stays READY while more of it is produced, so that the shorter one can be read.
        """
        if not self.fits(key, nbytes):
            return False
        hold = self._holds.get(key)
        if hold is None:
            self._expired.pop(key, None)
            hold = self._holds[key] = Hold(self._unique(), nbytes)
            self._live.add(hold.state, nbytes)
        elif nbytes > hold.nbytes:
            self._resize(hold, nbytes)
        self._add_claim(key, hold, now_s)
        return True

    def claim(self, key: K, now_s: float) -> bool:
        """A ranking without a signal of its own, or one too old, will pin a prefix that is live for others.

        It takes a claim away like any other; without one of its own that would be somebody else's.
        """
        hold = self._holds.get(key)
        if hold is None or hold.forgotten:
            return False
        self._add_claim(key, hold, now_s)
        return True

    def produce(self, key: K, generation: int | None = None) -> bool:
        """The first chunk starts."""
        return self._start(key, generation, State.PRODUCING)

    def reload(self, key: K, generation: int | None = None) -> bool:
        """A copy from host memory starts."""
        return self._start(key, generation, State.RELOADING)

    def ready(self, key: K, now_s: float, generation: int | None = None, nbytes: int | None = None) -> bool:
        """The last write is complete, or the prefix was there all along.

        With `nbytes`, only so much of the reservation is kept. If nobody waits any more, the next `expire`
        lists it. False for a forgotten one too, which `cancel` then ends.
        """
        hold = self._current(key, generation)
        if hold is None or hold.forgotten or hold.readable:
            return False
        if nbytes is not None and nbytes < hold.nbytes:
            self._resize(hold, nbytes)
        self._move(hold, State.READY)
        hold.prune(now_s)
        if not hold.claims:
            self._push_end(now_s, key, hold)
        return True

    def pin(self, key: K, generation: int | None = None) -> bool:
        """A ranking reads the prefix from now on, and has used its claim; only READY ones can be read."""
        hold = self._current(key, generation)
        if hold is None or hold.forgotten or not hold.readable:
            return False
        hold.fate = Cause.CONSUMED
        hold.pins += 1
        hold.take_claim()
        self._move(hold, State.PINNED)
        return True

    def unpin(self, key: K, now_s: float, generation: int | None = None) -> Left[K] | None:
        """The ranking has read it; what left, if this was the last that could."""
        hold = self._current(key, generation)
        if hold is None or not hold.pins:
            return None
        hold.pins -= 1
        if hold.pins:
            return None
        hold.prune(now_s)
        if not hold.claims:
            return self._leave(key, hold)
        self._move(hold, State.READY)
        return None

    def release(self, key: K, now_s: float, generation: int | None = None) -> Left[K] | None:
        """A request ended without reading the prefix: withdrawn, or ranked another way.

        What left, if nobody else waits. A prefix that is being produced or reloaded stays until `ready` or
        `cancel`, since its memory is in use.
        """
        hold = self._current(key, generation)
        if hold is None or not hold.claims:
            return None
        hold.take_claim()
        hold.prune(now_s)
        hold.expect(Cause.CANCELLED if hold.state is State.READY else Cause.LATE)
        return self._leave_unless_used(key, hold)

    def cancel(self, key: K, generation: int | None = None) -> Left[K] | None:
        """A reservation, production or reload ends without a prefix; those who wait have a miss."""
        hold = self._current(key, generation)
        if hold is None or hold.readable:
            return None
        if hold.claims:
            hold.expect(Cause.CANCELLED)
        return self._leave(key, hold)

    def forget(self, key: K) -> Left[K] | None:
        """The user was deleted or the build retired: no claim counts, no pin is granted.

        A prefix that is being written or read leaves with the `cancel` or `unpin` of who does so.
        """
        self._expired.pop(key, None)
        hold = self._holds.get(key)
        if hold is None:
            return None
        hold.forgotten = True
        hold.claims.clear()
        hold.expect(Cause.CANCELLED)
        return self._leave_unless_used(key, hold)

    def expire(self, now_s: float) -> list[Left[K]]:
        """Reserved and ready prefixes whose claims have all ended, soonest first."""
        left: list[Left[K]] = []
        while self._ends and self._ends[0][0] <= now_s:
            _, _, key, generation = heapq.heappop(self._ends)
            hold = self._current(key, generation)
            if hold is not None:
                hold.prune(now_s)
                gone = self._leave_unless_used(key, hold)
                if gone is not None:
                    left.append(gone)
                    self._remember(gone, now_s)
        return left

    def next_end_s(self) -> float | None:
        """When `expire` is due again, or earlier; None if nothing is claimed."""
        return self._ends[0][0] if self._ends else None

    def came_late(self, key: K, now_s: float) -> bool:
        """Whether a ranking that finds nothing had an orphan here, in the last `t_life_s`; True once."""
        expired_s = self._expired.pop(key, None)
        return expired_s is not None and now_s - expired_s <= self.t_life_s

    def _current(self, key: K, generation: int | None) -> Hold | None:
        hold = self._holds.get(key)
        return hold if hold is None or generation is None or hold.generation == generation else None

    def _start(self, key: K, generation: int | None, state: State) -> bool:
        hold = self._current(key, generation)
        if hold is None or hold.state is not State.RESERVED:
            return False
        self._move(hold, state)
        return True

    def _add_claim(self, key: K, hold: Hold, now_s: float) -> None:
        end = now_s + self.t_life_s
        hold.add_claim(end)
        self._push_end(end, key, hold)

    def _push_end(self, end_s: float, key: K, hold: Hold) -> None:
        heapq.heappush(self._ends, (end_s, self._unique(), key, hold.generation))
        if len(self._ends) > self._ends_limit:
            # A hold without claims is waited for by nobody, and looked at as soon as it may leave.
            self._ends = [
                (end, self._unique(), key, hold.generation)
                for key, hold in self._holds.items()
                for end in hold.claims or [-math.inf]
            ]
            heapq.heapify(self._ends)
            self._ends_limit = 2 * len(self._ends) + 64

    def _unique(self) -> int:
        self._next += 1
        return self._next

    def _move(self, hold: Hold, state: State) -> None:
        self._live.move(hold.state, state, hold.nbytes)
        hold.state = state

    def _resize(self, hold: Hold, nbytes: int) -> None:
        self._live.resize(hold.state, nbytes - hold.nbytes)
        hold.nbytes = nbytes

    def _leave_unless_used(self, key: K, hold: Hold) -> Left[K] | None:
        return None if hold.in_use else self._leave(key, hold)

    def _leave(self, key: K, hold: Hold) -> Left[K]:
        del self._holds[key]
        self._live.remove(hold.state, hold.nbytes)
        return Left(key, hold.generation, hold.nbytes, hold.state, hold.fate)

    def _remember(self, gone: Left[K], now_s: float) -> None:
        if gone.cause is Cause.ORPHAN:
            self._expired[gone.key] = now_s
        while self._expired:
            oldest_s = next(iter(self._expired.values()))
            if len(self._expired) <= _EXPIRED_REMEMBERED and now_s - oldest_s <= self.t_life_s:
                return
            self._expired.popitem(last=False)
