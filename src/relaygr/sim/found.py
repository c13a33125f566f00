"""What an instance has of a prefix."""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """Tokens of a prefix on the device, and in host memory."""

    device: int
    host: int
