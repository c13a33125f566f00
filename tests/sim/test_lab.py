"""Experiments, sweeps and sizing on a small scale: they hang together, and say what they should."""

from __future__ import annotations

import msgspec
import pytest
from fleets import changed, world

from relaygr.sim.experiments import experiment
from relaygr.sim.lab import Lab
from relaygr.sim.plot import report_svg
from relaygr.sim.protocol import Outcome, find_length
from relaygr.sim.report import Report, everything
from relaygr.sim.sizing import size
from relaygr.sim.sweeps import Bench
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import VARIANTS


def lab(requests: int = 500, seeds: tuple[int, ...] = (0,), **values: object) -> Lab:
    traffic = Traffic(requests=requests, warmup=50, warmup_taus=200)
    return Lab(world(chunk_taus=0.25, **values), traffic, seeds)


def test_a_probe_tries_no_more_seeds_than_it_needs() -> None:
    many = lab(200, (0, 1, 2, 3, 4))
    rate = 1 / many.world.tau_s
    good, bad = many.probe("inline_full", 0.01 * rate, 1024), many.probe("inline_full", 2 * rate, 2048)
    assert good.passes
    assert len(good.shares) == 5
    assert not bad.passes
    assert len(bad.shares) == 2


def test_shortened_histories_count_for_the_variant_that_is_about_them() -> None:
    found = lab()
    rate = 0.5 / found.world.tau_s
    shortened = found.probe("inline_truncated", rate, 2048).shares[0]
    full = found.serve("inline_truncated", rate, 2048)
    assert shortened.good == full.in_time / full.requests > full.good_share
    assert shortened.served < 2048


@pytest.mark.parametrize("regime", ["first_touch", "sessions"])
def test_e1_and_e2_find_longer_histories_and_higher_rates(regime: str) -> None:
    found = experiment(lab(250), regime, 2.0)  # type: ignore[arg-type]
    lengths, rates = found.lengths, found.rates
    assert lengths.ratio is not None
    assert lengths.ratio >= 1.2
    assert rates is not None
    assert rates.ratio is not None
    assert rates.ratio > 2
    assert rates.length == lengths.inline.best >= 2048  # type: ignore[union-attr]
    assert lengths.q0 == pytest.approx(lengths.base.best / 2)  # type: ignore[operator]
    _check_edge(lengths.relay.probes)  # type: ignore[union-attr]


def _check_edge(probes: tuple[Outcome, ...]) -> None:
    """The best passed, and the next length failed."""
    passed = max(one.length for one in probes if one.passes)
    failed = min(one.length for one in probes if not one.passes and one.length > passed)
    assert failed == passed + 128


def test_a_longer_budget_never_makes_histories_shorter() -> None:
    found = []
    for taus in (2.0, 3.0):
        mine = lab(200, rank_taus=taus)
        found.append(find_length(mine.probe, "relay_full", 0.1 / mine.world.tau_s, 8192).best)
    assert found[0] < found[1]


def test_fewest_instances_are_enough_and_one_less_is_not() -> None:
    found = lab(400)
    rate = 2.0 / found.world.tau_s
    inline, relay = size(found, rate, 3072)
    for need in (inline, relay):
        assert need.instances is not None
        tried = dict(need.probes)
        assert tried[need.instances]
        assert need.instances == 1 or not tried[need.instances - 1]
        assert need.outcome.passes
    assert relay.instances < inline.instances  # type: ignore[operator]


def test_not_even_all_instances_are_enough() -> None:
    (need,) = size(lab(200), 50.0 / lab().world.tau_s, 8192, ("inline_full",), most=2)
    assert need.instances is None
    assert need.tried == 2


def test_everything_runs_from_one_call_and_can_be_written_and_drawn() -> None:
    pytest.importorskip("matplotlib")
    words: list[str] = []
    quick = Lab(world(chunk_taus=0.25), Traffic(requests=60, warmup=10, warmup_taus=50), (0,), words.append)
    report = everything(quick, quick=True, instances=2, progress=words.append)
    assert [one.regime for one in report.experiments] == ["first_touch", "sessions"] * 2
    for sweep in report.ablations:
        assert {row.variant for row in sweep.rows} == {one.name for one in VARIANTS}
    names = [sweep.name for sweep in report.sweeps]
    wanted = ["normal traffic", "host hits", "popularity", "bursts", "interference"]
    assert names == [*wanted, "kill", "scaling", "rollout"]
    hits = next(sweep for sweep in report.sweeps if sweep.name == "host hits")
    computed = [row.result.computed_ahead + row.result.computed_inline for row in hits.rows]
    assert computed == sorted(computed, reverse=True)
    assert {one.instances for one in report.scale} == {1, 2}
    assert report.world.costs.scatter == ()
    assert words
    again = msgspec.json.decode(msgspec.json.encode(report), type=Report)
    assert again == report
    svg = report_svg(report)
    assert svg.startswith("<svg")
    assert "relay_full" in svg


def test_normal_traffic_waits_less_with_the_relay_than_behind_long_histories() -> None:
    many = lab(800)
    rates = {"first_touch": 0.5 / many.world.tau_s, "sessions": 0.5 / many.world.tau_s}
    sweep = Bench(many, rates, 3072).normal((1.0,))  # type: ignore[arg-type]
    inline, relay = (sweep.row("1", name).result for name in ("inline_full", "relay_full"))
    assert relay.short.p99 < inline.short.p99
    with pytest.raises(KeyError):
        sweep.row("2")


def test_changing_the_seed_changes_little() -> None:
    one = lab(1000)
    rate = 0.25 / one.world.tau_s
    shares = [one.serve("relay_full", rate, 2048, seed).good_share for seed in range(3)]
    assert max(shares) - min(shares) < 0.03
    assert changed(one.traffic, seed=3) != one.traffic
