"""Byte counts as people write them: `4096`, `"512MiB"`, `"1.5 GiB"`."""

from __future__ import annotations

import re
from fractions import Fraction

from relaygr.core.units import GIB, KIB, MIB

# Decimal units are refused rather than read as binary ones: a silent 7 % is worse than an error.
_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024 * GIB}
_PATTERN = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,6})?)\s*([A-Za-z]{0,3})")


def parse_bytes(text: str) -> int:
    """Read a count of bytes with an optional binary unit (B, KiB, MiB, GiB, TiB; any case).

    Raises:
        ValueError: for another unit, another form, or a count that is not a whole number of bytes.
    """
    match = _PATTERN.fullmatch(text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} must be a number of bytes such as 4096, '512MiB' or '2GiB'")
    count = Fraction(match[1]) * unit
    if count.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(count)
