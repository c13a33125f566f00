"""`bench cluster`: replicas on one machine; what more of them give, and what a change of them costs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from relaygr.bench.cell import random_ranker
from relaygr.bench.cluster_caller import Connect
from relaygr.bench.cluster_chaos import run_chaos
from relaygr.bench.cluster_report import ClusterReport, ScaleReport, ShapeReport
from relaygr.bench.cluster_scale import run_scale
from relaygr.bench.cluster_shape import FORGETFUL, Setup, replica_settings
from relaygr.bench.cluster_shapes import SHAPES
from relaygr.bench.cluster_spec import ClusterSpec
from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.bench.serve_process import ServerProcess
from relaygr.config.settings import EngineConfig
from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB
from relaygr.engine import Engine
from relaygr.models.presets import preset
from relaygr.models.weights import save_ranker

_PRESET = "hstu-tiny"
_POOL_BYTES = 256 * MIB

Tell = Callable[[str], None]


def bench_cluster(spec: ClusterSpec, connect: Connect, tell: Tell) -> ClusterReport:
    """Run in temporary folders.

    Raises:
        ConfigError: this machine can run none of the shapes.
        BackendError: a server does not start.
    """
    skipped = {name: why for name in spec.shapes if (why := SHAPES[name].missing())}
    names = [name for name in spec.shapes if name not in skipped]
    if not names:
        raise ConfigError(
            "--shape", "; ".join(f"{name!r} cannot run: {why}" for name, why in skipped.items())
        )
    shapes = _chaos(names, spec, connect, tell) if "chaos" in spec.parts else []
    scale: ScaleReport | None = None
    if "scale" in spec.parts:
        scale = run_scale(names[0], spec.scale, connect, spec.seed, _about("scale", tell))
    first = shapes[0] if shapes and shapes[0].shape == spec.shapes[0] else None
    return ClusterReport(
        cpu=cpu_model(),
        cores=usable_cores(),
        load=round(os.getloadavg()[0], 2),
        replicas=spec.replicas,
        users=spec.users,
        rate=spec.rate,
        affinity_share=None if first is None else first.affinity_share,
        failed_after_kill=None if first is None else first.failed_after_kill,
        moved_share_after_add=None if first is None else first.moved_share_after_add,
        shapes=shapes,
        skipped=skipped,
        scale=scale,
    )


def _chaos(names: list[str], spec: ClusterSpec, connect: Connect, tell: Tell) -> list[ShapeReport]:
    """One shape after the other, and one server alone beside all of them."""
    found = []
    with tempfile.TemporaryDirectory(prefix="relaygr-cluster-") as place:
        folder = Path(place)
        paths = [folder / "first", folder / "second"]
        for number, path in enumerate(paths):
            save_ranker(random_ranker(preset(_PRESET), torch.float32, spec.seed + number), path)
        loaded = [Engine.load(path, EngineConfig(dtype="fp32", device_bytes=16 * MIB)) for path in paths]
        engines = {one.model_fp.hex(): one for one in loaded}
        settings = (*replica_settings(paths[0], 1, _POOL_BYTES), *FORGETFUL)
        tell("starting one server alone")
        with ServerProcess(folder, settings) as alone:
            for name in names:
                tell(f"{name}: starting")
                setup = Setup(
                    folder=folder / name, settings=settings, count=spec.replicas, budget_ms=spec.deadline_ms
                )
                with SHAPES[name](setup) as shape:
                    found.append(
                        run_chaos(
                            name, spec, shape, connect, alone.url, paths[1], engines, _about(name, tell)
                        )
                    )
    return found


def _about(what: str, tell: Tell) -> Tell:
    return lambda text: tell(f"{what}: {text}")
