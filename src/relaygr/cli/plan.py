"""`relaygr plan`: sizes and costs before anything is run."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from relaygr.bench.plan import ModelPlan, plan_model
from relaygr.cli.plan_cache import cache_command
from relaygr.config.sizes import parse_bytes
from relaygr.core.errors import ConfigError
from relaygr.core.units import format_bytes
from relaygr.models.presets import preset as preset_config
from relaygr.models.weights import load_config

plan_app = App(name="plan", help="Work out sizes and costs before running anything.")
plan_app.command(cache_command, name="cache")


@plan_app.command(name="model")
def model_command(
    *,
    preset: str | None = None,
    model: Path | None = None,
    history: int | None = None,
    candidates: int = 128,
    dtype: str = "bf16",
    device_bytes: str = "2GiB",
) -> None:
    """Print FLOPs, K/V bytes and the users that fit, of a preset or of a model folder.

    Parameters
    ----------
    preset: str | None
        Size preset; hstu-small if neither this nor a model is given.
    model: Path | None
        Folder with a config.json.
    history: int | None
        Tokens; by default 2,048, or as many as the model takes.
    device_bytes: str
        What the pool of cached prefixes may take, such as 512MiB.
    """
    if preset is not None and model is not None:
        raise ConfigError("--preset", f"{preset!r} and --model {model} exclude each other")
    config = load_config(model) if model is not None else preset_config(preset or "hstu-small")
    try:
        size = parse_bytes(device_bytes)
    except ValueError as error:
        raise ConfigError("--device-bytes", str(error)) from error
    name = str(model) if model is not None else preset or "hstu-small"
    tokens = min(2048, config.max_seq_len) if history is None else history
    Console().print(_table(name, plan_model(config, tokens, candidates, dtype, size)))


def _table(name: str, plan: ModelPlan) -> Table:
    title = (
        f"{name}: history {plan.history}, {plan.candidates} candidates, {plan.dtype}, {plan.layers} layers"
    )
    table = Table("what", "value", title=escape(title))
    table.columns[1].justify = "right"
    rows = (
        ("matrices, per token and layer", _flops(plan.flops_per_token_and_layer)),
        ("attention, per pair and layer", _flops(plan.attention_flops_per_pair_and_layer)),
        ("attention overtakes, keys of one token", f"{plan.overtakes_token:,.0f}"),
        ("attention overtakes, tokens of a prefill", f"{plan.overtakes_prefill:,.0f}"),
        ("prefill: the history", _flops(plan.prefill_flops)),
        ("full: history and candidates", _flops(plan.full_flops)),
        ("hit: candidates, history cached", _flops(plan.hit_flops)),
        (f"append: {plan.appended} events", _flops(plan.append_flops)),
        ("saved by the cache, of full", f"{plan.saved_share:.1%}"),
        ("K/V per token", format_bytes(plan.kv_bytes_per_token)),
        (f"K/V of {plan.history:,} tokens", format_bytes(plan.row_kv_bytes)),
        ("K/V of the longest row", format_bytes(plan.max_row_kv_bytes)),
        (f"users in {format_bytes(plan.device_bytes)}, pages of {plan.page_tokens}", f"{plan.users:,}"),
    )
    for row in rows:
        table.add_row(*row)
    return table


def _flops(count: int) -> str:
    """Decimal units, three significant digits."""
    value, unit = float(count), ""
    for name in ("k", "M", "G", "T", "P"):
        if value < 1000:
            break
        value, unit = value / 1000, name
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}FLOP" if unit else f"{count} FLOP"
