"""`relaygr bench beam`: the table of the highest rates."""

from __future__ import annotations

from rich import box
from rich.table import Table

from relaygr.bench.beam_highest import RateFound
from relaygr.bench.beam_rates import NAIVE


def rates_table(rates: tuple[RateFound, ...], baseline: str = NAIVE, short_name: str = NAIVE) -> Table:
    """A line a search; the last column compares what is kept at least with what the baseline cannot keep."""
    others = max((point.others_cores for one in rates for point in one.points), default=0.0)
    table = Table(
        title=f"highest rates at which P99 is within {rates[0].target_ms:,.0f} ms",
        caption="a - b: a is kept, b is not (?: with fewer votes than asked for); < b: nothing lower was "
        "kept, or played; requests: of the loads that kept a or more, that did not keep b or less; other "
        f"processes used up to {others:.2f} cores",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for name in ("variant", "ids", "alone, ms", "at most", "rate, 1/s", "requests", f"of {short_name}"):
        table.add_column(name, justify="left" if name == "variant" else "right", no_wrap=True)
    base = next((one.below_per_s for one in rates if one.name == baseline), None)
    for one in rates:
        ratio = one.keeps_per_s / base if base and one.keeps_per_s and one.name != baseline else None
        table.add_row(
            one.name,
            short(one.sids),
            f"{one.alone_ms:.0f}",
            f"{one.saturated_per_s:.2f}",
            one.told,
            " / ".join(map(str, one.requests)),
            "" if ratio is None else f">= {ratio:.1f}x",
        )
    return table


def short(count: int) -> str:
    """In thousands or millions."""
    return f"{count / 1e6:g}M" if count >= 10**6 else f"{count / 1e3:g}k"
