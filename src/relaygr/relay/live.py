"""Device bytes of live prefixes by state, against a bound that can be moved while they are in use."""

from __future__ import annotations

from relaygr.relay.hold import State


class LiveBytes:
    """`total` never exceeds `bound` while callers ask `fits` before they add.

    Raises: a prefix that was not added cannot be taken away (AssertionError).
    """

    __slots__ = ("_bound", "_bytes", "_counts", "_proposed", "_total")

    def __init__(self, bound_bytes: int) -> None:
        self._bound = bound_bytes
        self._proposed: int | None = None
        self._total = 0
        self._bytes = dict.fromkeys(State, 0)
        self._counts = dict.fromkeys(State, 0)

    @property
    def total(self) -> int:
        return self._total

    @property
    def bound(self) -> int:
        return self._bound

    @property
    def limit(self) -> int:
        """What additions must stay within: the bound, or a lower one that is proposed."""
        return self._bound if self._proposed is None else self._proposed

    def fits(self, nbytes: int) -> bool:
        return self._total + nbytes <= self.limit

    def by_state(self) -> dict[State, int]:
        return dict(self._bytes)

    def counts(self) -> dict[State, int]:
        """Prefixes, not bytes."""
        return dict(self._counts)

    def add(self, state: State, nbytes: int) -> None:
        self._counts[state] += 1
        self.resize(state, nbytes)

    def remove(self, state: State, nbytes: int) -> None:
        assert self._counts[state] > 0, f"no prefix is {state}"
        self._counts[state] -= 1
        self.resize(state, -nbytes)

    def move(self, old: State, new: State, nbytes: int) -> None:
        self._counts[old] -= 1
        self._counts[new] += 1
        self._bytes[old] -= nbytes
        self._bytes[new] += nbytes

    def resize(self, state: State, growth_bytes: int) -> None:
        self._bytes[state] += growth_bytes
        self._total += growth_bytes
        self._commit()

    def propose(self, bound_bytes: int) -> bool:
        """A lower bound ends additions above it at once, and holds when so much has drained.

        Returns whether it holds already. A later proposal replaces one that still drains.
        """
        self._proposed = bound_bytes
        self._commit()
        return self._proposed is None

    def _commit(self) -> None:
        if self._proposed is not None and self._total <= self._proposed:
            self._bound, self._proposed = self._proposed, None
