"""How a benchmark that has to end in time divides what is left among what is still to do."""

from __future__ import annotations

from collections.abc import Sequence

from relaygr.bench.relay_wire import clock


class Allotment:
    """Shares of the time until `end_s`, on the clock of `relay_wire`, in the order they are asked for.

    What one does not use is there for those that follow, and what it takes beyond is missing there.
    """

    def __init__(self, end_s: float, parts: Sequence[tuple[str, float]]) -> None:
        """`parts` by name and weight, in the order in which they will come; some may be left out."""
        self.end_s = end_s
        self._parts = list(parts)

    def share_s(self, name: str) -> float:
        """Seconds for the next part of this name; those before it are over.

        Raises:
            KeyError: it is not to come.
        """
        names = [part for part, _ in self._parts]
        if name not in names:
            raise KeyError(name)
        mine, *later = self._parts[names.index(name) :]
        self._parts = later
        left_s = max(self.end_s - clock(), 0.0)
        return left_s * mine[1] / (mine[1] + sum(weight for _, weight in later))
