"""The cache benchmark: visitors do as their trace says, engines find what it leaves, the report adds up."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from relaygr.bench.cache import (
    DEVICE,
    DEVICE_HOST,
    DEVICE_HOST_DISK,
    DEVICE_HOST_INT8,
    NONE,
    CacheSpec,
    bench_cache,
)
from relaygr.bench.cache_arm import Arm, Setup
from relaygr.bench.cache_control import ControlSpec, bench_control
from relaygr.bench.cache_report import CacheReport
from relaygr.bench.cache_users import Visitors, stretch
from relaygr.bench.cell import random_ranker
from relaygr.cache.policies import POLICIES
from relaygr.cache.speeds import MeasuredCompute
from relaygr.cli import bench_cache as command
from relaygr.cli.main import main
from relaygr.config.host import HostConfig
from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB
from relaygr.kernels.select import choose
from relaygr.models.presets import preset
from relaygr.sim.cache.trace import Trace


def trace(*visits: tuple[int, int, int]) -> Trace:
    """Of (user, length, same)."""
    user, length, same = (np.array(column, np.int64) for column in zip(*visits, strict=True))
    return Trace(
        name="made",
        time_ms=1000 * np.arange(len(user)),
        user=user,
        length=length,
        same=same,
        users=int(user.max()) + 1,
        base_tokens=0,
    )


SMALL = ControlSpec(tokens=200, batch=4, users=8, visits=2)
# A user who grows, one who comes in between, a change in the middle, less of a history, and all of it again.
VISITS = trace((0, 40, 0), (1, 70, 0), (0, 45, 40), (0, 45, 20), (0, 30, 30), (0, 48, 45), (1, 70, 70))


def test_visitors_keep_what_their_trace_keeps_and_change_the_rest() -> None:
    visitors = Visitors(VISITS, 1 << 16, 8, 0)
    seen = [visitors.request(place) for place in range(len(VISITS))]
    assert [len(one.history) for one in seen] == VISITS.length.tolist()
    assert [one.history.user for one in seen] == ["u0", "u1", "u0", "u0", "u0", "u0", "u1"]
    items = [one.history.items for one in seen]

    def common(one: int, other: int) -> int:
        most = min(len(items[one]), len(items[other]))
        differs = np.flatnonzero(items[one][:most] != items[other][:most])
        return int(differs[0]) if len(differs) else most

    assert [common(2, 0), common(3, 2), common(4, 3), common(5, 3), common(6, 1)] == [40, 20, 30, 45, 70]
    assert [len(one.candidates) for one in seen] == [8] * 7
    again = Visitors(VISITS, 1 << 16, 8, 0)
    for place, one in enumerate(seen):
        other = again.request(place)
        assert (other.history.items == one.history.items).all()
        assert (other.candidates == one.candidates).all()


@pytest.mark.parametrize("host_bytes", [0, 8 * MIB])
def test_an_engine_reuses_what_the_trace_says_and_nothing_else(
    host_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MeasuredCompute, "known", False)  # what copies take is of no matter here
    choice = choose("cpu", "fp32")
    config = preset("hstu-tiny")
    model = random_ranker(config, choice.dtype, 0)
    host = HostConfig(host_bytes=host_bytes, run_chunk_tokens=32, clean_target=0.9)
    kept = Arm(Setup("kept", MIB, host), model, choice, Visitors(VISITS, 1000, 8, 0), 8)
    anew = Arm(Setup("anew"), model, choice, Visitors(VISITS, 1000, 8, 0), 8)
    for place in range(len(VISITS)):
        for arm in (kept, anew):
            arm.visit(place)
        assert anew.logits is not None
        kept.compare(anew.logits, 1e-4)
    assert (kept.cached, anew.cached) == (VISITS.same.tolist(), [0] * len(VISITS))
    assert kept.engine.copy_stats().late_loads == 0
    tiers = kept.tiers(VISITS.length)
    assert tiers.device_tokens + tiers.host_tokens == pytest.approx(VISITS.same.sum() / VISITS.length.sum())
    assert tiers.device_requests + tiers.host_requests == pytest.approx(5 / 7)
    assert (tiers.host_tokens > 0) == (host_bytes > 0)
    assert len(kept.ms) == len(kept.spill_ms) == len(VISITS)


def test_a_stretch_begins_anew() -> None:
    part = stretch(VISITS, 2, 5)
    assert (part.user.tolist(), part.users) == ([0, 0, 0, 0, 1], 2)
    assert part.length.tolist() == VISITS.length.tolist()[2:]
    assert part.same.tolist() == [0, 20, 30, 45, 0]
    assert part.base_tokens == part.footprint_tokens == 48 + 70
    assert VISITS.same.tolist() == [0, 0, 40, 20, 30, 45, 70]  # as it was


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> CacheReport:
    events = tmp_path_factory.mktemp("log") / "events.csv"
    rows = [f"{user},{item},{1000 * item + user}" for item in range(100) for user in range(3)]
    events.write_text("\n".join(["user_id,item_id,timestamp", *rows]) + "\n")
    spec = CacheSpec(
        preset="hstu-tiny",
        dtype="fp32",
        traces=(events,),
        visits=24,
        users=4,
        candidates=8,
        max_history=128,
        rounds=2,
        policies=("lru", "gd_cost"),
        policy_users=50,
        control=SMALL,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MeasuredCompute, "known", False)  # so small a model may be quicker than a copy
        return bench_cache(spec)


def test_the_report_adds_up(report: CacheReport) -> None:
    assert [work.planned for work in report.workloads] == [24, 24]
    for work in report.workloads:
        names = [NONE, DEVICE, DEVICE_HOST, DEVICE_HOST_INT8, DEVICE_HOST_DISK]
        assert [arm.name for arm in work.arms] == names
        none, device, host, rounded, disk = work.arms
        assert disk.saved_bytes >= disk.fetched_bytes >= 0
        assert host.saved_bytes == host.fetched_bytes == 0
        assert work.visits == 24
        assert 0 < work.returning < 24
        assert (none.hits.request_hit, none.speedup) == (0.0, 1.0)
        for arm in work.arms:
            assert arm.per_s > 0
            assert arm.latency.p50_ms <= arm.latency.p99_ms
            assert arm.speedup_least <= arm.speedup <= arm.speedup_most
            for got, most in zip(_ratios(arm.hits), _ratios(work.ceiling), strict=True):
                assert got <= most + 1e-9
            assert arm.tiers.device_tokens + arm.tiers.host_tokens == pytest.approx(arm.hits.token_hit)
        # The host has room for everybody.
        for arm in (host, rounded):
            assert _ratios(arm.hits) == pytest.approx(_ratios(work.ceiling), abs=0.005)
            assert (arm.late_loads, arm.lost_tokens) == (0, 0)
            assert sum(arm.decisions.values()) == round(24 * arm.hits.request_hit)
        assert device.host_bytes == none.host_bytes == none.device_bytes == 0
        assert rounded.host_bytes < host.host_bytes / 2
    first = report.workloads[0]
    assert report.speedup_device_host == first.arm(DEVICE_HOST).speedup
    assert report.hit_ratio == first.arm(DEVICE_HOST).hits
    assert report.ceiling == first.ceiling
    assert report.policies is not None
    assert len(report.policies.points) == 8
    assert msgspec.json.decode(msgspec.json.encode(report), type=CacheReport).seed == 0


def _ratios(hits: object) -> list[float]:
    return [getattr(hits, name) for name in ("request_hit", "token_hit", "cost_hit")]


def test_the_books_are_timed() -> None:
    found = bench_control(SMALL)
    assert found.samples == 16
    names = {step.name for step in found.steps}
    assert names == {
        "lookup",
        "choose",
        "prepare_load",
        "complete_load",
        "append",
        "publish",
        "prepare_store",
        "complete_store",
    }
    assert 0 < found.device_hit_us < found.host_hit_us + 1e6
    assert all(0 < step.median_us <= step.p99_us for step in found.steps)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"visits": 1}, "--visits: 1 is outside"),
        ({"device_share": 0.0}, "--device-share: 0.0 is outside"),
        ({"max_history": 8}, "--max-history: 8 is outside"),
        ({"rounds": 0}, "--rounds: 0 is outside"),
        ({"preset": "hstu-huge"}, "preset: 'hstu-huge' is unknown"),
    ],
)
def test_options_out_of_range_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CacheSpec(**change)  # type: ignore[arg-type]


def run(*options: str) -> int:
    """The exit status of `relaygr bench cache`."""
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "cache", *options])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_the_command_prints_and_writes_the_books(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "control.json"
    assert run("--control", "--json", str(file)) == 0
    assert "target 100 us a user" in capsys.readouterr().out
    assert msgspec.json.decode(file.read_bytes())["batch"] == 64


def test_the_command_prints_all_tables(
    report: CacheReport, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: list[CacheSpec] = []

    def bench(spec: CacheSpec, progress: object) -> CacheReport:
        specs.append(spec)
        return report

    monkeypatch.setattr(command, "bench_cache", bench)
    file = tmp_path / "cache.json"
    assert run("--quick", "--visits", "12", "--trace", "a.csv", "--trace", "b.csv", "--json", str(file)) == 0
    (spec,) = specs
    assert (spec.visits, spec.users, spec.minutes, spec.policies) == (12, 24, 1.0, ("lru", "gd_cost"))
    assert spec.traces == (Path("a.csv"), Path("b.csv"))
    out = capsys.readouterr().out
    for words in ("24 visits", "ceiling", "nowhere", "+ int8", "gd_cost", "target 100 us a user"):
        assert words in out
    written = msgspec.json.decode(file.read_bytes())
    assert {"speedup_device_host", "hit_ratio", "ceiling", "p99_ratio", "machine"} <= written.keys()
    assert run("--policies", "none") == run("--policies", "all") == 0
    assert [one.policies for one in specs[1:]] == [(), POLICIES]
    assert (specs[1].visits, specs[1].users) == (CacheSpec().visits, CacheSpec().users)


def test_unknown_policies_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--policies", "mru") == 2
    assert "--policies: 'mru' is none of lru" in capsys.readouterr().err
