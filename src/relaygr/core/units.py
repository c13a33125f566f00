"""Byte and time units, and how they are printed."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def format_bytes(count: int) -> str:
    """Binary units, four significant digits: 6144 -> '6 KiB', 20132659200 -> '18.75 GiB'."""
    value, unit = float(count), "B"
    for name in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, name
    return f"{value:.4g} {unit}" if unit != "B" else f"{count} B"
