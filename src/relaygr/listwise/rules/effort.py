"""What an exact search may still spend: partial lists to expand, and the time of its request."""

from __future__ import annotations

from collections.abc import Callable

from relaygr.listwise.masks import never


class OutOfNodesError(Exception):
    """The nodes or the time ended before there was an answer; internal to the look-ahead."""


class Effort:
    """Counts down for all searches of one walk.

    Args:
        nodes: states to expand.
        late: whether the time is over; asked at every node.
    """

    def __init__(self, nodes: int, late: Callable[[], bool] = never) -> None:
        self.nodes, self.late = nodes, late

    @property
    def over(self) -> bool:
        """Whether nothing may be expanded any more."""
        return self.nodes <= 0 or self.late()

    def spend(self) -> None:
        """One node.

        Raises:
            OutOfNodesError: there is none left, or the time is over.
        """
        if self.nodes <= 0 or self.late():
            raise OutOfNodesError
        self.nodes -= 1
