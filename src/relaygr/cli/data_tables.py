"""The tables that `relaygr data` prints."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime

from rich.markup import escape
from rich.table import Table

from relaygr.data.dataset import Events
from relaygr.data.describe import REPEAT_WINDOW, SESSION_GAP_S, Statistics, describe
from relaygr.data.readers.interface import Skipped

_LABELS = {
    "first_s": "first event (UTC)",
    "last_s": "last event (UTC)",
    "median_length": "events per user, median",
    "p90_length": "events per user, p90",
    "p99_length": "events per user, p99",
    "max_length": "events per user, max",
    "users_50": "users with >= 50 events",
    "users_200": "users with >= 200 events",
    "users_1000": "users with >= 1,000 events",
    "users_10000": "users with >= 10,000 events",
    "long_users_share": "events held by users with >= 1,000",
    "same_second": "events in the second of the user's event before",
    "sessions": f"sessions ({SESSION_GAP_S // 3600} h of silence end one)",
    "events_per_session": "events per session",
    "repeats": f"repeats within the user's last {REPEAT_WINDOW} events",
    "single_event_items": "items with one event",
    "top_items_share": "events on the top 1 % of items",
}
_SHARES = {"long_users_share", "same_second", "repeats", "top_items_share"}


def statistics_table(events: Events) -> Table:
    """What `describe` counts."""
    table = Table("what", "value", title=escape(f"{events.meta.name or 'dataset'} in {events.path}"))
    table.columns[1].justify = "right"
    statistics = describe(events)
    for field in fields(Statistics):
        label = _LABELS.get(field.name, field.name)
        table.add_row(label, _format(field.name, getattr(statistics, field.name)))
    return table


def _format(field: str, value: float) -> str:
    if field in _SHARES:
        return f"{value:.1%}"
    if field in {"first_s", "last_s"}:
        return _format_time(int(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _format_time(time_s: int) -> str:
    # Seconds beyond the year 9999 are valid data but no calendar date of the standard library.
    return (
        f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S}"
        if time_s < 253_402_300_800
        else f"{time_s} s"
    )


def skipped_table(skipped: tuple[Skipped, ...], record: str) -> Table:
    """How many records were left out, and why; `record` is what one is called."""
    table = Table("reason", f"{record}s left out")
    table.columns[1].justify = "right"
    for item in skipped:
        table.add_row(item.reason.value, f"{item.count:,}")
    return table
