"""The distilled generator beside a beam: true gain in a simulated world, processor time, and counted work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from relaygr.core.clock import ManualClock
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64
from relaygr.listwise.evaluate import Rescore
from relaygr.listwise.generators.beam import DEFAULT_TOP, DEFAULT_WIDTH, Beam
from relaygr.listwise.generators.one_shot import OneShot, OneShotConfig
from relaygr.listwise.lists import ListModel
from relaygr.listwise.proposal import Budget, Generator
from relaygr.listwise.request import Mode
from relaygr.listwise.scene import Scene
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import HeadSpec, StepModel
from relaygr.listwise.trust import Trust
from relaygr.training.slate.distil import distil, make_pools, taught, teachers
from relaygr.training.slate.fit import train_step
from relaygr.training.slate.gain_methods import ask, proposed
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.shapes import world_config
from relaygr.training.slate.truth import watched
from relaygr.training.slate.world import HEADS, VALUE, Requests, World, WorldConfig

Observe = Callable[[str], None]


class OneShotReport(msgspec.Struct, frozen=True, kw_only=True):
    """Both generators on the same fresh requests; `*_share` are of the beam's.

    Attributes:
        beam_gain, gain: true U over the pointwise lists' in per cent; gain_share: one as a share of the
            other.
        beam_ms, ms: processor time a list, P50, inside the trust region, as servers call
            them, and without the cosines that all generators of a request share.
        beam_work, work: multiply-adds of nets and look-ups a list, counted from shapes.
    """

    lists: int
    requests: int
    beam_gain: float
    gain: float
    gain_share: float
    beam_ms: float
    ms: float
    ms_share: float
    beam_work: int
    work: int
    work_share: float


def bench_one_shot(lists: int, pools: int, requests: int, seed: int, observe: Observe) -> OneShotReport:
    """Train on `lists` logged lists, distil on `pools` requests, and measure on `requests` others.

    Raises:
        ConfigError: a number is below 1.
    """
    for name, number in (("lists", lists), ("pools", pools), ("requests", requests)):
        if number < 1:
            raise ConfigError(name, f"{number} is below 1")
    world = World(WorldConfig(seed=seed))
    observe(f"step model of {lists:,} lists")
    logs = explored_logs(world.requests(lists, 3 * seed + 1), seed).logs
    model = ListModel(train_step(world_config(), logs).model, VALUE)
    config = OneShotConfig(heads=tuple(HeadSpec(name=head.name) for head in HEADS), attributes=("topic",))
    observe(f"distilling on {pools:,} requests")
    learned = make_pools(_scenes(world.requests(pools, 3 * seed + 2)), config)
    shot = distil(config, learned, taught(learned, teachers(model, config.top), Rescore([model])))
    observe(f"{requests:,} requests")
    fresh = world.requests(requests, 3 * seed + 3)
    scenes, beam = _scenes(fresh), Beam(model)
    pointwise = float(watched(fresh, fresh.pointwise()).utility.mean())

    def gain(generator: Generator) -> float:
        return 100 * (float(watched(fresh, proposed(generator, scenes)).utility.mean()) / pointwise - 1)

    gains = gain(beam), gain(shot)
    times = [float(np.median(each)) for each in _times((beam, shot), scenes)]
    length = world.config.length
    work = beam_work(model.step, DEFAULT_WIDTH, DEFAULT_TOP, length), one_shot_work(shot, length)
    return OneShotReport(
        lists=lists,
        requests=requests,
        beam_gain=gains[0],
        gain=gains[1],
        gain_share=gains[1] / gains[0],
        beam_ms=times[0],
        ms=times[1],
        ms_share=times[1] / times[0],
        beam_work=work[0],
        work=work[1],
        work_share=work[1] / work[0],
    )


def beam_work(step: StepModel, width: int, top: int, length: int) -> int:
    """Multiply-adds of a beam: the step model for every candidate behind every list, and its whole lists."""
    K, F = len(step.heads), len(step.features)
    nets = sum(group.hidden * (F + K + 1) for group in step.config.groups)
    leaving = step.config.exit_hidden * (K + 1)
    positions = 1 + width * (length - 1)
    return (positions * top + width * length) * (nets + leaving)


def one_shot_work(shot: OneShot, length: int) -> int:
    """Multiply-adds of one pass of the net over the candidates, and what picks take from them."""
    config, m = shot.config, shot.config.top
    D, rows = config.width, 1 + len(config.attributes)
    layers = D * config.inputs + D * (1 + rows)
    blocks = config.blocks * (8 * D * D + 2 * m * D)
    return m * (layers + blocks) + length * m * (config.window + rows)


def _scenes(requests: Requests) -> list[Scene]:
    plain = Slates(VALUE, mode=Mode.OFF)
    return [plain.scene(ask(requests, n), requests.pool(n)) for n in range(len(requests))]


def _times(generators: Sequence[Generator], scenes: Sequence[Scene]) -> Float64:
    """Processor milliseconds of each generator and scene, turn by turn."""
    free, found = Budget(ManualClock()), np.empty((len(generators), len(scenes)))
    for n, whole in enumerate(scenes):
        scene = Trust().region(whole).scene
        assert len(scene.cosine) == len(scene)
        for at, generator in enumerate(generators):
            began = time.thread_time()
            generator.propose(scene, free)
            found[at, n] = (time.thread_time() - began) * 1e3
    return found
