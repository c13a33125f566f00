"""Whether a member that has not answered yet is slow or hangs: it is asked, and says something or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from relaygr.serving.fleet import Fleet


class Silence:
    """Watches a member while a request waits for it.

    When a quarter of the request's time is over the member is asked how it is; at half of it, and at latest
    after `router.feedback_max_age_s`, one that has said nothing since is to be left. Who only takes long
    keeps its requests: to move them would make a fleet that is busy compute everything twice.

    Attributes:
        certain: there was no sign of life; set before `stop` is called.
    """

    def __init__(self, fleet: Fleet, name: str, until_s: float | None, stop: Callable[[], None]) -> None:
        """`until_s` is when the answer is due, by the event loop's clock."""
        self._fleet, self._name, self._stop = fleet, name, stop
        self._loop, self.certain = asyncio.get_running_loop(), False
        patience_s = fleet.config.feedback_max_age_s
        if until_s is not None:
            patience_s = min(patience_s, (until_s - self._loop.time()) / 2)
        self._half_s = patience_s / 2
        self._timer = self._loop.call_later(self._half_s, self._ask)

    def end(self) -> None:
        """The request waits no more."""
        self._timer.cancel()

    def _ask(self) -> None:
        # Counted from here, so that a process that could not run itself blames nobody.
        self._timer = self._loop.call_later(self._half_s, self._judge, self._fleet.now_s())
        self._fleet.probe(self._name)

    def _judge(self, asked_s: float) -> None:
        if not self._fleet.heard_since(self._name, asked_s):
            self.certain = True
            self._stop()
