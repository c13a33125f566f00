"""Lone passes on a server: tau, what HTTP adds, and what hits take."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from relay_stub import RelayStub

from relaygr.bench.relay_speed import Lone, Lonely, Speed, calm, measure_hits, measure_speed, simulated
from relaygr.bench.relay_users import People
from relaygr.bench.relay_wire import Door, new_loop
from relaygr.config.settings import Config
from relaygr.relay.budgets import auto_budgets
from relaygr.relay.calibration import Build, Calibration, Point, save_calibration
from relaygr.relay.latency import Coefficients, Pass

COEFFICIENTS = Coefficients(t0_ms=1.0, t1_ms=0.001, t2_ms=1e-6, t_launch_ms=0.1)


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    shape = Pass(new_tokens=2048, candidates=128)
    build = Build(model="", dtype="fp32", kernel="", threads=1, machine="")
    point = Point(shape=shape, times_ms=(COEFFICIENTS.batch_ms([shape]),))
    file = tmp_path / "calibration.json"
    save_calibration(file, Calibration(build=build, coefficients=COEFFICIENTS, points=(point,)))
    return file


def measure(stub: RelayStub, calibration: Path) -> Speed:
    people = People(2048, 128, 1000, 0)

    async def run() -> Speed:
        async with stub.door() as door:
            speed = await measure_speed(door, people, calibration, 0.5)
            stub.path = "hit"
            return await measure_hits(door, people, speed, 0.5)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(run())


def test_speed_is_that_of_lone_passes(calibration: Path) -> None:
    stub = RelayStub(full_ms=4.0, hit_ms=1.0)
    speed = measure(stub, calibration)
    assert speed.samples >= 5
    assert speed.p10_ms <= speed.median_ms <= speed.p90_ms
    assert speed.coefficients.full_ms(2048, 0, 128) == pytest.approx(speed.tau_ms)
    assert speed.overhead_ms > 0
    assert len(speed.hit_ratios) >= 5
    world = simulated(speed, calibration, auto_budgets(COEFFICIENTS, 32, 4096), Config(), 512)
    long, chunk, hit = world.costs.scatter
    assert (long.ratios, chunk.ratios, hit.ratios) == (speed.ratios, speed.ratios, speed.hit_ratios)
    assert (long.hit, chunk.chunk, hit.hit) == (False, True, True)
    assert hit.fit_ms == pytest.approx(speed.coefficients.hit_ms(2048, 0, 128))


def test_a_server_that_keeps_nothing_has_no_hits(calibration: Path) -> None:
    people = People(2048, 128, 1000, 0)

    async def run(door: Door) -> Speed:
        return await measure_hits(door, people, await measure_speed(door, people, calibration, 0.2), 0.2)

    async def whole() -> Speed:
        async with RelayStub().door() as door:
            return await run(door)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(whole()).hit_ratios == ()


def test_spells_are_left_out() -> None:
    assert calm([1.0, 3.0, 1.1, *[1.2] * 37]) == (1.0, 1.1, *[1.2] * 36)
    assert calm([]) == ()
    assert calm([2.0]) == (2.0,)


def test_tau_is_no_spell(calibration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the medians of four stretches, two in a slow one, it is the larger of the two in the middle."""
    stretches = [1.0, 2.0, 2.0, 1.1]

    async def time(self: Lonely, seconds: float, least: int = 1) -> list[Lone]:
        early = [Lone(0.0, 9.0, 0.1, False)] * 5
        return early + [
            Lone(5.0 * at + place, ms, 0.1, False) for at, ms in enumerate(stretches) for place in range(4)
        ]

    monkeypatch.setattr(Lonely, "time", time)
    door, people = cast(Door, None), People(2048, 128, 1000, 0)
    assert asyncio.run(measure_speed(door, people, calibration, 20.0)).tau_ms == 2.0
    stretches[2] = 1.2
    assert asyncio.run(measure_speed(door, people, calibration, 20.0)).tau_ms == 1.2


def test_users_are_stored_once(calibration: Path) -> None:
    stub, people = RelayStub(), People(2048, 128, 1000, 0)

    async def whole() -> list[int]:
        async with stub.door() as door:
            lonely = Lonely(door, people)
            return [len(await lonely.time(0.05)) for _ in range(3)]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        counts = runner.run(whole())
    assert min(counts) >= 1
    assert stub.counts["events"] == 40
