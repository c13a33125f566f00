"""Whether the trigger was right: requests it called at risk, against what ranking then met."""

from __future__ import annotations

from collections import deque

WINDOW = 2000


class RiskScore:
    """Precision and recall over the last `limit` requests."""

    __slots__ = ("_counts", "_recent")

    def __init__(self, limit: int = WINDOW) -> None:
        self._recent: deque[tuple[bool, bool]] = deque(maxlen=limit)
        self._counts = {(said, was): 0 for said in (False, True) for was in (False, True)}

    def observe(self, said: bool, was: bool) -> None:
        """`said` at risk; `was`: computed whole, it would have missed its budget."""
        if len(self._recent) == self._recent.maxlen:
            self._counts[self._recent[0]] -= 1
        self._recent.append((said, was))
        self._counts[said, was] += 1

    @property
    def precision(self) -> float | None:
        """Of those called at risk, the share that was; None without any."""
        return _share(self._counts[True, True], self._counts[True, False])

    @property
    def recall(self) -> float | None:
        """Of those that were, the share that was called so; None without any."""
        return _share(self._counts[True, True], self._counts[False, True])


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None
