"""Gumbel noise by counter: a seed, a level and a node always give the same value.

Adding it to scores before taking the best W samples W candidates without replacement (Kool et al., 2019).
Being a function of the node, it depends neither on the batch nor on what else is selectable.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def gumbel(seed: int, level: int, nodes: Int64) -> Float64:
    """Standard Gumbel values [n], finite; `seed` is taken modulo 2**64.

    The generator is SplitMix64 (Steele, Lea and Flood, 2014): one mix of seed and level, one of each node.
    """
    start = int(_mix(np.array([(seed + level * _GOLDEN) & _MASK], dtype=np.uint64))[0])
    counters = nodes.astype(np.uint64)
    counters += np.uint64(1)
    counters *= np.uint64(_GOLDEN)
    counters += np.uint64(start)
    bits = _mix(counters) >> np.uint64(11)
    # The middles of 2**53 equal steps: never 0 and never 1, so that both logarithms are finite. (The last
    # steps would round to 1, so the top is held below.)
    uniform = np.minimum((bits.astype(np.float64) + 0.5) * 2.0**-53, 1.0 - 2.0**-53)
    values: Float64 = -np.log(-np.log(uniform))
    return values


def _mix(values: UInt64) -> UInt64:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
