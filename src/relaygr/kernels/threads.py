"""How many threads a serving process computes with."""

from __future__ import annotations

import logging
import os

import torch

log = logging.getLogger("relaygr.kernels")


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def serve_with_threads(wanted: int, power_of_two: bool = False) -> int:
    """Set the process's compute threads; 0 leaves one core to the event loop.

    An OpenMP loop waits for its slowest thread: with every core computing, whatever else runs on one of them
    stalls every product of a request.

    Args:
        power_of_two: take the next lower power of two. Other numbers cut element-wise work between vectors,
            so that a row's bits depend on how many rows there are.
    """
    threads = wanted or max(usable_cores() - 1, 1)
    if power_of_two:
        threads = 1 << (threads.bit_length() - 1)
    torch.set_num_threads(threads)
    log.info("%d compute threads on %d cores", threads, usable_cores())
    return threads
