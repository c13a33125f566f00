"""What an exact search may still spend: partial lists to expand, and the time of its request."""

from __future__ import annotations

from collections.abc import Callable

from relaygr.listwise.masks import never

_GLANCE = 8  # nodes between two looks at the clock, which take less than a millisecond


class OutOfNodesError(Exception):
    """The nodes or the time ended before there was an answer; internal to the look-ahead."""


class Effort:
    """Counts down for all searches of one walk.

    Args:
        nodes: states to expand.
        late: whether the time is over; asked now and then.
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
        if self.nodes <= 0 or (self.nodes % _GLANCE == 0 and self.late()):
            raise OutOfNodesError
        self.nodes -= 1
