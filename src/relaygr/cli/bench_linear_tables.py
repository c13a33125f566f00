"""What `relaygr bench linear` prints of whole searches and of prompts."""

from __future__ import annotations

from rich import box
from rich.table import Table

from relaygr.bench.linear import LinearReport
from relaygr.bench.linear_decode import EndToEndCell
from relaygr.bench.linear_prefill import PrefillCell
from relaygr.core.units import MIB


def decode_table(report: LinearReport) -> Table:
    """One row a width and prompt length."""
    least, most = report.published_ratios
    title = "Searches on a hybrid decoder, the decode phase: milliseconds, median"
    apart = max(cell.max_difference for cell in report.end_to_end)
    same = "the same ids" if all(cell.same_sets for cell in report.end_to_end) else "other ids"
    caption = (
        f"All ways found {same}; logits differ by up to {apart:.0e}. A paper states {least}-{most} for "
        "states/records, on hardware and models it does not name."
    )
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    columns = "prompt,W,prefill,records,states,replay,states/\nrec.,replay/\nrec.,all,MiB"
    for name in columns.split(","):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in report.end_to_end:
        table.add_row(*_row(cell))
    return table


def prefill_line(cell: PrefillCell) -> str:
    """What a token costs in a long prompt, against a short one."""
    (short, long), times = cell.tokens, (cell.short.median_ms, cell.long.median_ms)
    return (
        f"Prompts of {cell.layers} linear layers, no others: {short:,} tokens {milliseconds(times[0])} ms, "
        f"{long:,} tokens {milliseconds(times[1])} ms, a token {cell.per_token_ratio:.2f} times as long; "
        f"either leaves {cell.state_bytes / MIB:.1f} MiB behind"
    )


def milliseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _row(cell: EndToEndCell) -> list[str]:
    times = [cell.prefill, cell.records, cell.materialised, cell.replayed]
    replay = cell.replay_ratio
    return [
        str(cell.prompt),
        str(cell.width),
        *("-" if t is None else milliseconds(t.median_ms) for t in times),
        f"{cell.decode_ratio:.2f}",
        "-" if replay is None else f"{replay:.2f}",
        f"{cell.total_ratio:.2f}",
        f"{cell.record_bytes.total / MIB:.0f}/{cell.materialised_bytes.total / MIB:.0f}",
    ]
