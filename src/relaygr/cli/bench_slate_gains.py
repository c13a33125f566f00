"""Tables of what lists gain in worlds of known truth."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from relaygr.training.slate.gain_rows import GainsReport


def gain_tables(report: GainsReport) -> Iterator[Table]:
    """Gains by method, and inflation by width and pool where that was measured."""
    seeds = len(report.seeds)
    table = Table(
        title=f"True utility over pointwise lists', less 1, per cent: {seeds} x {report.requests:,} requests",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("method", no_wrap=True)
    for name in ("logs", "gain", "95 %", "worlds", "inflation"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(
            row.method,
            "" if row.lists is None else f"{row.lists:,}",
            f"{row.gain:+.1f}",
            f"{row.low:.1f} {row.high:.1f}",
            f"{min(row.by_seed):.1f} {max(row.by_seed):.1f}",
            "" if row.inflation is None else f"{row.inflation:.2f}",
        )
    yield table
    if report.margins:
        yield _margins(report)
    if report.cells:
        yield _inflation(report)


def _margins(report: GainsReport) -> Table:
    table = Table(title="The default's gain less that of others, points", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("less", no_wrap=True)
    for name in ("logged lists", "points", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in report.margins:
        table.add_row(one.than, f"{one.lists:,}", f"{one.points:+.1f}", f"{one.low:+.1f} .. {one.high:+.1f}")
    return table


def _inflation(report: GainsReport) -> Table:
    lists = report.cells[0].lists
    table = Table(
        title=f"Predicted over true utility of chosen lists, {lists:,} logged lists",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("model", no_wrap=True)
    for name in ("B", "m", "gain", "predicted / true"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in report.cells:
        table.add_row(
            "over-fitted" if cell.fitted else "default",
            str(cell.width),
            str(cell.candidates),
            f"{cell.gain:+.1f}",
            f"{cell.inflation:.2f}",
        )
    return table
