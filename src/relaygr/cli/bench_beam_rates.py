"""`relaygr bench beam`: the table of the highest rates."""

from __future__ import annotations

from rich.table import Table

from relaygr.bench.beam_highest import RateFound
from relaygr.bench.beam_rates import NAIVE


def rates_table(rates: tuple[RateFound, ...]) -> Table:
    """A line a search; `of naive` compares what is kept at least with what the baseline cannot keep."""
    table = Table(
        title=f"highest rate at P99 {rates[0].target_ms:,.0f} ms",
        caption="a - b: a is kept, b is not (?: with fewer votes than asked for); < b: nothing lower was "
        "kept, or played; requests: of loads that kept a or more, that did not keep b or less",
    )
    for name in (
        "variant",
        "ids",
        "alone, ms",
        "saturated, 1/s",
        "rate, 1/s",
        "requests",
        "others",
        "of naive",
    ):
        table.add_column(name, justify="left" if name == "variant" else "right", no_wrap=True)
    base = next((one.below_per_s for one in rates if one.name == NAIVE), None)
    for one in rates:
        ratio = one.keeps_per_s / base if base and one.keeps_per_s and one.name != NAIVE else None
        table.add_row(
            one.name,
            f"{one.sids:,}",
            f"{one.alone_ms:.0f}",
            f"{one.saturated_per_s:.2f}",
            one.told,
            " / ".join(map(str, one.requests)),
            f"{max((point.others_cores for point in one.points), default=0.0):.2f}",
            "" if ratio is None else f">= {ratio:.1f}x",
        )
    return table
