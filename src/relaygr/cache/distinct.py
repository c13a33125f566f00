"""How many different hashes came by, in fixed memory."""

from __future__ import annotations

import math

_BITS = 14
_REGISTERS = 1 << _BITS
_BIAS = 0.7213 / (1 + 1.079 / _REGISTERS)


class Distinct:
    """An estimate within about 1 % from 16 KiB; a hash that came before changes nothing.

    Source: Flajolet et al. 2007, "HyperLogLog"; small numbers by the registers that are still empty.
    Cost: O(1).
    """

    __slots__ = ("_empty", "_largest", "_sum")

    def __init__(self) -> None:
        self._largest = bytearray(_REGISTERS)
        self._empty = _REGISTERS
        self._sum = float(_REGISTERS)  # of 2 ** -register; powers of two, so that it stays exact

    def add(self, hash64: int) -> None:
        """A hash of 64 bits, each as likely to be set as not."""
        place, rest = hash64 % _REGISTERS, hash64 >> _BITS
        rank = 65 - _BITS - rest.bit_length()
        before = self._largest[place]
        if rank > before:
            self._largest[place] = rank
            self._empty -= not before
            self._sum += 2.0**-rank - 2.0**-before

    def count(self) -> float:
        estimate = _BIAS * _REGISTERS**2 / self._sum
        if self._empty and estimate <= 2.5 * _REGISTERS:
            return _REGISTERS * math.log(_REGISTERS / self._empty)
        return estimate
