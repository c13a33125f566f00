"""Keep freed activation memory in the process instead of returning it to the system between layers.

A layer frees and allocates the same few MiB again and again. The GNU C library gives large blocks back at
once, so that each pass pays for fresh pages: a third of an fp32 prefill of 2,048 tokens.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys

log = logging.getLogger("relaygr.kernels")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of the GNU C library
KEEP_BYTES = 1 << 30  # free memory above this at the end of the heap still goes back
HEAP_BLOCK_BYTES = 512 << 20  # larger blocks get pages of their own


@functools.cache
def keep_freed_memory() -> bool:
    """Ask the C library once per process; False where it is not the GNU one."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        log.info("the C library has no mallopt: freed activations go back to the system")
        return False
    kept = mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES) == 1 and mallopt(_M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES) == 1
    log.info("freed memory is %s the process", "kept in" if kept else "not kept in")
    return bool(kept)
