"""Waiting for what other threads do, and the threads that a test starts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_S = 20.0  # of a test that would fail; nothing waits for it otherwise


def await_true(condition: Callable[[], bool]) -> None:
    """Until it holds. What another thread does after it has let a waiter go is to be waited for like this."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.0005)


def started_threads() -> Callable[[], list[threading.Thread]]:
    """Call the answer for the threads begun since that still live.

    Counting threads would count those of earlier tests, too, which may end at any time.
    """
    before = set(threading.enumerate())
    return lambda: [thread for thread in threading.enumerate() if thread not in before]
