"""What a message may repeat of what was sent: its beginning."""

from __future__ import annotations

MOST = 300  # characters


def excerpt(text: str, most: int = MOST) -> str:
    """The text, or its first `most` characters and how many there were."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
