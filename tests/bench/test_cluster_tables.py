"""What `bench cluster` prints: figures and policy of every shape, what was left out, and the limit."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from relaygr.bench.cluster_report import ClusterReport, Phase, ScalePoint, ScaleReport, ShapeReport
from relaygr.cli.bench_cluster_tables import print_cluster

PHASE = Phase(
    name="kill",
    visits=120,
    failed=1,
    hung=2,
    affinity_share=0.975,
    hit_share=None,
    p50_ms=7.25,
    p99_ms=31,
    longest_ms=1042.5,
)
SHAPE = ShapeReport(
    shape="peers",
    policy="nobody stands in",
    phases=[PHASE],
    hop_ms=1.26,
    affinity_share=1.0,
    failed_after_kill=1,
    hung_after_kill=2,
    unsettled_after_kill_s=0.74,
    failed_in_add=0,
    moved_share_after_add=0.31,
    moved_share_wanted=1 / 3,
    failed_in_update=4,
    mixed_versions=1,
    checked=120,
    versions={"a": 60, "b": 60},
    wrong=["user-7: a score is off by 0.5 [hit]"],
)
POINT = ScalePoint(
    replicas=4,
    rps=15.25,
    engines_rps=18.5,
    speed_up=1.9,
    efficiency=0.475,
    of_machine=0.824,
    affinity_share=1.0,
    failed=3,
    p50_ms=410,
    p99_ms=903,
    rounds_rps=[15, 15.25, 16],
)
SCALE = ScaleReport(
    shape="peers",
    preset="hstu-small",
    events=1024,
    candidates=128,
    clients=6,
    threads=1,
    rounds=3,
    window_s=5,
    points=[POINT],
    note="2 cores are as many as 2 replicas use",
    skipped={8: "8 replicas need 6 GiB of memory"},
)
REPORT = ClusterReport(
    cpu="a cpu",
    cores=2,
    load=0.5,
    replicas=3,
    users=300,
    rate=30,
    affinity_share=1.0,
    failed_after_kill=1,
    moved_share_after_add=0.31,
    shapes=[SHAPE],
    skipped={"envoy": "Envoy is missing"},
    scale=SCALE,
)


def printed(report: ClusterReport) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_cluster(console, report)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_everything_is_said() -> None:
    out = printed(REPORT)
    for text in (
        "3 replicas, 300 users, 30 visits/s; clients try a lap up to 3 times",
        "peers: nobody stands in",
        "97.5%",
        "1042.5",
        "it adds 1.3 ms",
        "0.7 s after the kill",
        "31.0% of the users, 33.3% if evenly",
        "update: 4 failed, 1 of 120 rankings",
        "user-7: a score is off by 0.5 [hit]",
        "envoy: skipped: Envoy is missing",
        "hstu-small, 1024 events and 128 candidates",
        "1 of 2 cores to a replica",
        "47.5%",
        "82.4%",
        "2 cores are as many as 2 replicas use",
        "8: skipped: 8 replicas need 6 GiB of memory",
    ):
        assert text in out, text


def test_parts_that_were_not_run_are_not_mentioned() -> None:
    out = printed(msgspec.structs.replace(REPORT, shapes=[], skipped={}, scale=None))
    assert out == "a cpu, 2 cores, load 0.5\n"


def test_the_three_figures_stand_at_the_top_of_the_json() -> None:
    found = msgspec.json.decode(msgspec.json.encode(REPORT))
    assert {
        name: found[name] for name in ("affinity_share", "failed_after_kill", "moved_share_after_add")
    } == {
        "affinity_share": 1.0,
        "failed_after_kill": 1,
        "moved_share_after_add": 0.31,
    }
    assert found["shapes"][0]["policy"] == "nobody stands in"
    assert found["scale"]["skipped"] == {"8": "8 replicas need 6 GiB of memory"}
