"""`relaygr bench beam-modes`: what beams save by sharing their prompt, and whether `auto` chooses right."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.beam_modes import BeamsReport, BeamsSpec, bench_beams
from relaygr.cli.report import write_json
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError

_DEFAULT = BeamsSpec()


def beams(
    *,
    json: Path | None = None,
    heads: int = _DEFAULT.heads,
    kv_heads: int = _DEFAULT.kv_heads,
    dim: int = _DEFAULT.dim,
    dtype: str = _DEFAULT.dtype,
    depth: int = _DEFAULT.depth,
    widths: str = ",".join(map(str, _DEFAULT.widths)),
    prompts: str = ",".join(map(str, _DEFAULT.prompts)),
    rounds: int = _DEFAULT.rounds,
    threads: int = 0,
) -> None:
    """Time one layer's decode attention in every mode, and check the choice that `auto` makes.

    Parameters
    ----------
    json: Path | None
        Also write the report to this file.
    heads: int
        Query heads of a layer.
    kv_heads: int
        K/V heads of a layer; each serves heads / kv_heads query heads.
    depth: int
        Slots a beam owns, its own among them.
    widths: str
        Beams, numbers with commas between them.
    prompts: str
        Prompt tokens, numbers with commas between them.
    rounds: int
        Runs of each mode, in turns; the best counts.
    threads: int
        0 leaves one core free, as a server does.
    """
    spec = BeamsSpec(
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        dtype=dtype,
        depth=depth,
        widths=numbers("--widths", widths),
        prompts=numbers("--prompts", prompts),
        rounds=rounds,
        threads=threads,
    )
    check_file("--json", json)
    with Console(stderr=True).status("starting") as status:
        report = bench_beams(spec, lambda text: status.update(escape(text)))
    write_json(json, report)
    console = Console()
    console.print(_table(report))
    console.print(_summary(report), soft_wrap=True, markup=False)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """What an option lists.

    Raises:
        ConfigError: not numbers.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(option, f"{text!r} must be whole numbers with commas between them") from None


def _table(report: BeamsReport) -> Table:
    shape = report.shape
    table = Table(
        title=f"ms a layer and step, {shape.heads} / {shape.kv_heads} heads of {shape.dim}, {shape.dtype}, "
        f"{shape.depth} own slots, {shape.threads} of {report.cores} cores compute, best of {report.rounds}"
    )
    for name in ("W", "P", "split", "joint", "replicate", "auto", "over best", "gain", "GFLOP/s"):
        table.add_column(name, justify="right")
    for c in report.cells:
        gain = c.sharing_gain
        table.add_row(
            str(c.width),
            str(c.prompt_tokens),
            f"{c.split_ms:.2f}",
            f"{c.joint_ms:.2f}",
            "" if c.replicate_ms is None else f"{c.replicate_ms:.2f}",
            c.auto,
            f"{c.auto_over_best:.2f}",
            "" if gain is None else f"{gain:.1f}x",
            f"{c.gflop / c.auto_ms * 1e3:.0f}",
        )
    return table


def _summary(report: BeamsReport) -> str:
    worst = report.worst_auto
    where = f"W {worst.width}, P {worst.prompt_tokens}"
    lines = [f"auto over the better mode: at most {worst.auto_over_best:.2f} ({where})"]
    if len({c.prompt_tokens for c in report.cells}) > 1:
        for width in sorted({c.width for c in report.cells}):
            time, flop = report.growth(width)
            lines.append(f"W {width}, longest over shortest prompt: time {time:.2f}x, FLOPs {flop:.2f}x")
    return "\n".join([*lines, report.reason, report.cpu])
