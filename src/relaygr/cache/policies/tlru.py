"""The tokens that a late request could compute anew in time leave before those that it could not."""

from __future__ import annotations

from relaygr.cache.policies.order import Order, Ordered
from relaygr.cache.policies.settings import PolicySettings
from relaygr.cache.policy import K, Victim, Weight


class Tlru(Ordered[K]):
    """Of a history of L tokens, the first L + growth - late are kept longest; the others leave before them.

    That is what a request needs to have no more than `late_tokens` to compute after the history has grown by
    `growth_tokens`. First the others of all entries leave, then whole entries, each by the last visit. More
    requests are in time, and more tokens are computed.
    """

    def __init__(self, capacity_bytes: int, settings: PolicySettings) -> None:
        super().__init__(capacity_bytes)
        self._spared = settings.late_tokens - settings.growth_tokens
        self._cut: Order[K] = Order()  # those that can be cut, ranked as in the other
        self._history: dict[K, int] = {}  # tokens, whatever was cut
        self._now = 0

    def insert(self, key: K, weight: Weight) -> None:
        here = key in self._order
        history = self._history[key] = max(weight.tokens, self._history.get(key, 0))
        if not here:
            self._order.place(key, self._tick())
        if weight.tokens > self._keep(history):
            self._can_be_cut(key)
        elif key in self._cut:
            self._cut.remove(key)

    def touch(self, key: K) -> None:
        if key in self._order:
            rank = self._tick()
            self._order.place(key, rank)
            if key in self._cut:
                self._cut.place(key, rank)

    def remove(self, key: K) -> None:
        self._order.remove(key)
        del self._history[key]
        if key in self._cut:
            self._cut.remove(key)

    def forget(self, key: K) -> None:
        if key in self._order:
            self.remove(key)

    def park(self, key: K) -> None:
        self._order.park(key)
        if key in self._cut:
            self._cut.park(key)

    def unpark(self, key: K) -> None:
        self._order.unpark(key)
        if key in self._cut:
            self._cut.unpark(key)

    def evict(self) -> Victim[K] | None:
        key = self._cut.pop()
        if key is not None and (keep := self._keep(self._history[key])):
            return Victim(key, keep)
        if key is None:
            key = self._order.first()
        if key is None:
            return None
        self.remove(key)
        return Victim(key)

    def _keep(self, history: int) -> int:
        return max(0, history - self._spared)

    def _can_be_cut(self, key: K) -> None:
        self._cut.place(key, self._order.rank(key))
        if self._order.is_parked(key):
            self._cut.park(key)

    def _tick(self) -> int:
        self._now += 1
        return self._now
