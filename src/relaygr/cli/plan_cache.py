"""`relaygr plan cache`: what tiers hold, hit and gain."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console

from relaygr.cache.policies import DEFAULT
from relaygr.cli.cache_options import (
    FromFiles,
    Generated,
    Knobs,
    MadeUp,
    check_knobs,
    naming,
    open_trace,
    parse_capacities,
    parse_policies,
    parse_size,
)
from relaygr.cli.plan_cache_tables import print_plan
from relaygr.cli.report import write_json
from relaygr.cli.steps import telling
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError
from relaygr.models.presets import preset as preset_config
from relaygr.models.weights import load_config
from relaygr.relay.latency import Coefficients
from relaygr.sim.cache.plan import Load, TierMode, Tiers, Way, plan_cache
from relaygr.sim.cache.sizing import Shape
from relaygr.sim.costs import measured_file

_DEFAULT_PRESET = "hstu-kuairand"
_TIERS = Tiers()


def cache_command(
    *,
    preset: str | None = None,
    model: Path | None = None,
    layers: int | None = None,
    heads: int | None = None,
    qk_dim: int | None = None,
    v_dim: int | None = None,
    dtype: Literal["fp32", "bf16", "fp16"] = "bf16",
    host_dtype: Literal["same", "bf16", "fp16", "int8", "fp8"] = "same",
    device_bytes: str = "2GiB",
    host_bytes: str = "4GiB",
    disk_bytes: str = "0",
    tier_mode: TierMode = "exclusive",
    page_tokens: int = _TIERS.page_tokens,
    run_chunk_tokens: int = _TIERS.run_chunk_tokens,
    staging_tokens: int = _TIERS.staging_tokens,
    policies: str = f"lru,{DEFAULT}",
    capacities: str = "2%,5%,10%,25%",
    calibration: Path | None = None,
    t1_ms: float | None = None,
    t2_ms: float | None = None,
    candidates: int = 128,
    link_gb_s: float = 4.0,
    disk_gb_s: float = 1.0,
    fix_ms: float = 0.05,
    queue_ms: float = 0.0,
    json: Path | None = None,
    source: FromFiles = None,
    generated: MadeUp = None,
    knob: Knobs = None,
) -> int:
    """Print bytes per token, users per tier, footprint, ceilings, hit curve, break-even lengths, staging.

    Parameters
    ----------
    preset: str | None
        Size preset; hstu-kuairand if neither this nor a model nor a shape is given.
    model: Path | None
        Folder with a config.json.
    layers: int | None
        The shape itself, with --heads, --qk-dim and --v-dim.
    dtype: Literal["fp32", "bf16", "fp16"]
        Of states on the device.
    host_dtype: Literal["same", "bf16", "fp16", "int8", "fp8"]
        Of states on host and disk; eight bits have a scale beside each row.
    device_bytes: str
        Sizes of the tiers, such as 512MiB; 0 for no host and no disk.
    tier_mode: TierMode
        Whether an entry lives in one tier, or lower tiers hold all of the upper.
    staging_tokens: int
        That one buffer of a transfer takes.
    policies: str
        Names between commas, or all.
    capacities: str
        Further points of the hit curve: shares of what all users take, or bytes.
    calibration: Path | None
        File of `relaygr calibrate --json`, for break-even lengths.
    t1_ms: float | None
        Or the cost of a new token, with --t2-ms of its looking at one other.
    candidates: int
        Of one request.
    link_gb_s: float
        Gigabytes a second between host and device; --disk-gb-s from disk.
    fix_ms: float
        What a copy takes beside its bytes.
    queue_ms: float
        Until a link is free.
    json: Path | None
        Also write everything to this file.
    """
    check_file("--json", json)
    shape = _shape(preset, model, layers, heads, qk_dim, v_dim)
    made = generated or Generated()
    with naming("tiers."):
        tiers = Tiers(
            dtype=dtype,
            host_dtype=host_dtype,
            device_bytes=parse_size("--device-bytes", device_bytes),
            host_bytes=parse_size("--host-bytes", host_bytes),
            disk_bytes=parse_size("--disk-bytes", disk_bytes),
            mode=tier_mode,
            page_tokens=page_tokens,
            run_chunk_tokens=run_chunk_tokens,
            full_tokens=made.max_length,
            staging_tokens=staging_tokens,
        )
        for room in tiers.rooms(shape):
            room.check()
    load, settings = _load(calibration, t1_ms, t2_ms, candidates), check_knobs(knob)
    ways = _ways(tiers, link_gb_s, disk_gb_s, fix_ms, queue_ms)
    names, sizes = parse_policies("--policies", policies), parse_capacities("--capacities", capacities)
    with telling("reading") as tell, naming(""):
        plan = plan_cache(
            shape,
            tiers,
            open_trace(source, made),
            policies=names,
            capacities=sizes,
            ways=ways,
            load=load,
            settings=settings,
            progress=tell,
        )
    write_json(json, plan)
    print_plan(Console(), plan)
    return 0


def _shape(
    preset: str | None,
    model: Path | None,
    layers: int | None,
    heads: int | None,
    qk_dim: int | None,
    v_dim: int | None,
) -> Shape:
    """The shape from the one place that was given."""
    given = {"--layers": layers, "--heads": heads, "--qk-dim": qk_dim, "--v-dim": v_dim}
    explicit = [option for option, value in given.items() if value is not None]
    places = [("--preset", preset), ("--model", model), (explicit[0] if explicit else "", explicit or None)]
    named = [option for option, value in places if value is not None]
    if len(named) > 1:
        raise ConfigError(named[0], f"it and {named[1]} exclude each other")
    if layers is not None and heads is not None and qk_dim is not None and v_dim is not None:
        with naming("shape."):
            return Shape(layers=layers, heads=heads, qk_dim=qk_dim, v_dim=v_dim)
    if explicit:
        missing = next(option for option, value in given.items() if value is None)
        raise ConfigError(missing, f"is missing beside {explicit[0]}")
    config = load_config(model) if model is not None else preset_config(preset or _DEFAULT_PRESET)
    return Shape(layers=config.num_layers, heads=config.num_heads, qk_dim=config.qk_dim, v_dim=config.v_dim)


def _load(calibration: Path | None, t1_ms: float | None, t2_ms: float | None, candidates: int) -> Load | None:
    """What passes take, if that was said."""
    if not 0 <= candidates <= 2**20:
        raise ConfigError("--candidates", f"{candidates} must be in [0, {2**20}]")
    if calibration is not None:
        if t1_ms is not None or t2_ms is not None:
            raise ConfigError("--calibration", f"{calibration} and --t1-ms, --t2-ms exclude each other")
        return Load(coefficients=measured_file(calibration).coefficients, candidates=candidates)
    if t1_ms is None and t2_ms is None:
        return None
    if t1_ms is None or t2_ms is None:
        raise ConfigError("--t1-ms" if t1_ms is None else "--t2-ms", "is missing beside the other of the two")
    for option, value in (("--t1-ms", t1_ms), ("--t2-ms", t2_ms)):
        if not 0 < value <= 1e6:
            raise ConfigError(option, f"{value} must be in (0, 1e6]")
    coefficients = Coefficients(t0_ms=0.0, t1_ms=t1_ms, t2_ms=t2_ms, t_launch_ms=0.0)
    return Load(coefficients=coefficients, candidates=candidates)


def _ways(tiers: Tiers, link_gb_s: float, disk_gb_s: float, fix_ms: float, queue_ms: float) -> list[Way]:
    for option, value, low, high in (
        ("--link-gb-s", link_gb_s, 1e-6, 1e6),
        ("--disk-gb-s", disk_gb_s, 1e-6, 1e6),
        ("--fix-ms", fix_ms, 0.0, 1e6),
        ("--queue-ms", queue_ms, 0.0, 1e6),
    ):
        if not low <= value <= high:
            raise ConfigError(option, f"{value} must be in [{low:g}, {high:g}]")
    ways = []
    for name, nbytes, speed in (("host", tiers.host_bytes, link_gb_s), ("disk", tiers.disk_bytes, disk_gb_s)):
        if nbytes:
            ways.append(Way(name=name, bytes_per_s=1e9 * speed, fix_ms=fix_ms, queue_ms=queue_ms))
    return ways
