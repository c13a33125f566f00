"""Members that users may be sent to: the preferred one below its share of what is in flight."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from relaygr.relay.rendezvous import Kind, preference

# Products such as 1.25 * 0.2 * 20 are whole numbers that floating point may put a little above.
_ROUNDING = 1e-9


def cap(load_factor: float, share: float, inflight: int) -> int:
    """Requests in flight at which a member with this share of all weights takes no new user."""
    return math.ceil(load_factor * share * (inflight + 1) - _ROUNDING)


class Pool:
    """Some members with their weights; made anew when they change. `weights` may be empty.

    Attributes:
        total: requests in flight on them, kept by the router.
    """

    def __init__(self, kind: Kind, weights: Mapping[str, float], total: int) -> None:
        self.weights, self.total = dict(weights), total
        self._whole = sum(self.weights.values())
        self._preference = preference(kind, self.weights) if self.weights else None

    def __contains__(self, member: str) -> bool:
        return member in self.weights

    def share(self, member: str) -> float:
        return self.weights[member] / self._whole

    def moved_from(self, before: Pool) -> float:
        """Share of the users whose owner is another than in `before`, where one member's weight was changed.

        What the owners' shares gain in all: rendezvous hashing moves a user only to or from such a member.
        """
        if not (self.weights and before.weights):
            return 0.0
        return sum(
            max(self.share(name) - (before.share(name) if name in before else 0.0), 0.0)
            for name in self.weights
        )

    def owner(self, key: str, avoid: Collection[str] = ()) -> str | None:
        """The first choice that is not in `avoid`."""
        if self._preference is None:
            return None
        ids = self._preference.ids
        if not avoid:
            return ids[self._preference.owner(key)]
        return next((ids[at] for at in self._preference.order(key) if ids[at] not in avoid), None)

    def below_cap(
        self, key: str, load_factor: float, inflight: Mapping[str, int], avoid: Collection[str] = ()
    ) -> tuple[str | None, str | None]:
        """The first choice below its cap, and the first choice whatever its load.

        Members in `avoid` are passed over; where all others are at their caps, the first of those is taken.
        """
        if self._preference is None:
            return None, None
        ids = self._preference.ids
        first = least = None
        for at in self._preference.order(key):
            name = ids[at]
            first = first or name
            if name in avoid:
                continue
            if inflight[name] < cap(load_factor, self.share(name), self.total):
                return name, first
            least = least or name
        return least, first
