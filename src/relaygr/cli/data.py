"""`relaygr data`: make datasets, and describe one."""

from __future__ import annotations

from pathlib import Path

import msgspec
from cyclopts import App
from rich.console import Console

from relaygr.cli import data_readers
from relaygr.cli.data_tables import statistics_table
from relaygr.data.dataset import open_events
from relaygr.data.synth import SynthSpec, synthesize
from relaygr.data.write import check_target, write_events

data_app = App(name="data", help="Make and describe datasets of events.")
data_app.command(data_readers.csv)
data_app.command(data_readers.movielens)
data_app.command(data_readers.recbole)
data_app.command(data_readers.kuairand)
data_app.command(data_readers.jsonl)
data_app.command(data_readers.parquet)
data_app.command(data_readers.from_git)


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
    Console().print(statistics_table(events))


@data_app.command(name="describe")
def describe_command(folder: Path) -> None:
    """Print the statistics of the dataset in FOLDER."""
    Console().print(statistics_table(open_events(folder)))
