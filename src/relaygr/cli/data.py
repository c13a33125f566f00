"""`relaygr data`: make a dataset from a CSV file or a seed, and describe one."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.data.csvfile import CsvOptions, Skipped, read_csv
from relaygr.data.dataset import Events, open_events
from relaygr.data.describe import REPEAT_WINDOW, SESSION_GAP_S, Statistics, describe
from relaygr.data.synth import SynthSpec, synthesize
from relaygr.data.write import check_target, write_events

data_app = App(name="data", help="Make and describe datasets of events.")

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


@data_app.command
def csv(
    file: Path,
    *,
    out: Path,
    user_column: str = "user_id",
    item_column: str = "item_id",
    time_column: str = "timestamp",
    action_column: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    time_unit: Literal["s", "ms"] = "s",
    item_ids: Literal["int", "hash"] = "int",
    on_error: Literal["fail", "skip"] = "fail",
    name: str = "",
    source: str = "",
    licence: str = "",
) -> None:
    """Read FILE (CSV or gzipped CSV with a header) into the dataset OUT.

    Parameters
    ----------
    file: Path
        One row per event.
    out: Path
        Folder of the dataset; an older dataset there is replaced, anything else is left alone.
    action_column: tuple[str, ...]
        Column of 0/1 flags that becomes an action bit; may be given more than once.
    time_unit: Literal["s", "ms"]
        Unit of the timestamps; milliseconds are rounded down to seconds.
    item_ids: Literal["int", "hash"]
        Item ids are int64, or any strings, which are hashed to int64.
    on_error: Literal["fail", "skip"]
        Stop at the first bad row, or leave bad rows out and count them.
    name: str
        Name of the dataset, by default that of the file.
    source: str
        Where the events come from, by default the name of the file.
    licence: str
        Under what terms they may be used.
    """
    options = CsvOptions(
        user_column, item_column, time_column, action_column, time_unit, item_ids, on_error=on_error
    )
    check_target(out)
    errors = Console(stderr=True)
    title = escape(f"reading {file}")
    with errors.status(title) as status:
        read = read_csv(file, options, lambda rows: status.update(f"{title}: {rows:,} rows"))
    stem = file.name.split(".")[0]
    events = write_events(out, read.table, name=name or stem, source=source or file.name, licence=licence)
    console = Console()
    console.print(_statistics_table(events))
    if read.skipped:
        console.print(_skipped_table(read.skipped))


@data_app.command
def synth(
    *,
    out: Path,
    users: int = SynthSpec().users,
    mean_length: float = SynthSpec().mean_length,
    max_length: int = SynthSpec().max_length,
    items: int = SynthSpec().items,
    clusters: int = SynthSpec().clusters,
    repeat_rate: float = SynthSpec().repeat_rate,
    burst_rate: float = SynthSpec().burst_rate,
    taste: float = SynthSpec().taste,
    days: int = SynthSpec().days,
    seed: int = 0,
) -> None:
    """Generate the dataset OUT; the same parameters give the same bytes.

    Parameters
    ----------
    out: Path
        Folder of the dataset; an older dataset there is replaced, anything else is left alone.
    mean_length: float
        Mean events per user before clipping to max-length; lengths are log-normal.
    clusters: int
        Groups of items; each user likes a few.
    repeat_rate: float
        Share of events that repeat a recent item of the user.
    burst_rate: float
        Share of a session's events in the same second as the one before.
    taste: float
        Share of sessions within the user's own clusters.
    """
    spec = SynthSpec(
        users=users,
        mean_length=mean_length,
        max_length=max_length,
        items=items,
        clusters=clusters,
        repeat_rate=repeat_rate,
        burst_rate=burst_rate,
        taste=taste,
        days=days,
        seed=seed,
    )
    check_target(out)
    source = "relaygr data synth " + msgspec.json.encode(spec).decode()
    events = write_events(out, synthesize(spec), name=f"synth-{seed}", source=source, licence="CC0-1.0")
    Console().print(_statistics_table(events))


@data_app.command(name="describe")
def describe_command(folder: Path) -> None:
    """Print the statistics of the dataset in FOLDER."""
    Console().print(_statistics_table(open_events(folder)))


def _statistics_table(events: Events) -> Table:
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


def _skipped_table(skipped: tuple[Skipped, ...]) -> Table:
    table = Table("reason", "rows left out", title="bad rows")
    table.columns[1].justify = "right"
    for item in skipped:
        table.add_row(item.reason.value, f"{item.count:,}")
    return table
