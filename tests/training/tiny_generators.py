"""A small generator, and semantic ids of any dataset, for tests that train."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from relaygr.config.train_generator import TrainGeneratorConfig
from relaygr.data.dataset import Events
from relaygr.generation.sids.build import SemanticIds, build_sids
from relaygr.generation.sids.quantise import SidConfig
from relaygr.kernels.cpu.beams import CpuBeams
from relaygr.training.generator import GeneratorTrainer

TINY = TrainGeneratorConfig(
    layers=2,
    hidden=16,
    heads=2,
    kv_heads=2,
    head_dim=8,
    mlp=24,
    max_items=8,
    min_items=4,
    batch_windows=8,
    max_minutes=60.0,
    max_steps=9,
    warmup_steps=2,
    lr=1e-2,
    eval_every_steps=3,
    eval_requests=10,
    eval_width=8,
    patience=0,
)


def sids_of(events: Events, sizes: tuple[int, ...] = (8, 8)) -> SemanticIds:
    items = np.unique(events.item_ids)
    points = np.random.default_rng(0).standard_normal((len(items), 6)).astype(np.float32)
    return build_sids(items, points, SidConfig(sizes=sizes, collision="digit", passes=3))


def trainer(events: Events, out: Path, resume: bool = False, **changes: object) -> GeneratorTrainer:
    config = msgspec.structs.replace(TINY, **changes)
    return GeneratorTrainer(events, sids_of(events), "digest", out, config, CpuBeams(), resume)
