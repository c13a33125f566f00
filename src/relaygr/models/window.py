"""Where a long history's window begins: it moves in large strides, so that prefixes stay valid in between."""

from __future__ import annotations

from relaygr.core.errors import ConfigError


def window_start(sequence: int, max_history: int, stride_share: float, page_tokens: int) -> int:
    """Sequence number of the first event of the window.

    Args:
        sequence: events the user has had so far, n.
        max_history: most events of a row, N.
        stride_share: the window drops this share of N at a time, rounded down to whole pages (at least one).
        page_tokens: tokens of a page.

    Returns:
        0 while n <= N, then s ceil((n - N) / s): the window holds between N - s + 1 and N events
        (`relay.md` section 4).

    Raises:
        ConfigError: `stride_share` is outside (0, 1].
    """
    if not 0 < stride_share <= 1:
        raise ConfigError("engine.anchor_stride", f"{stride_share} is outside (0, 1]")
    if sequence <= max_history:
        return 0
    stride = max(int(stride_share * max_history) // page_tokens, 1) * page_tokens
    if stride > max_history:
        # A row shorter than a page can only move event by event.
        stride = max(int(stride_share * max_history), 1)
    return stride * -(-(sequence - max_history) // stride)
