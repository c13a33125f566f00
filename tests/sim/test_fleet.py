"""Several instances: who serves whom, what is fetched, and what happens when instances come and go."""

from __future__ import annotations

import pytest
from fleets import Watched, changed, traffic, world

from relaygr.core.units import MIB
from relaygr.sim.lab import Lab
from relaygr.sim.run import simulate
from relaygr.sim.sweeps import Bench
from relaygr.sim.tally import Result
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import VARIANTS
from relaygr.sim.world import Change, World

INSTANCES = 4


def fleet(name: str = "relay_full", **values: object) -> World:
    return world(name, instances=INSTANCES, **values)


def result(of: World, load: float, **values: object) -> Result:
    """`load` requests a tau and instance."""
    values.setdefault("requests", 600)
    values.setdefault("length", 2304)
    return simulate(of, traffic(load * of.instances, of, **values))


@pytest.mark.parametrize("name", [one.name for one in VARIANTS])
def test_r1_only_remote_fetch_reads_over_the_network(name: str) -> None:
    found = result(fleet(name), 0.3, requests=300)
    assert (found.fetches > 0) == (name == "remote_fetch")


def test_r2_both_laps_go_to_one_instance_unless_owners_are_random() -> None:
    assert result(fleet(), 0.3).owners_differ == 0
    random = result(fleet("relay_no_affinity"), 0.3)
    assert random.owners_differ == pytest.approx(1 - 1 / INSTANCES, abs=0.06)
    assert random.device_hits == pytest.approx(1 / INSTANCES, abs=0.08)
    assert random.wasted == pytest.approx(1 - 1 / INSTANCES, abs=0.12)


def test_an_early_prefix_beats_reading_the_history_inline() -> None:
    load = 0.25
    inline, relay = result(world("inline_full"), load), result(world(), load)
    assert relay.good_share > inline.good_share + 0.05
    assert relay.latency.p50 < inline.latency.p50 / 2
    assert relay.computed_ahead > 20 * relay.computed_inline


def test_without_host_tier_returning_users_are_computed_again() -> None:
    small = {"device_bytes": 32 * MIB, "chunk_taus": 0.25}
    load = {"regime": "sessions", "gap_taus": 200.0, "requests": 800, "length": 2304}
    tiered = result(fleet(**small), 0.3, **load)
    alone = result(fleet("relay_no_host", **small), 0.3, **load)
    assert tiered.reloads > 100
    assert alone.reloads == alone.spills == 0
    assert alone.computed_ahead > 1.5 * tiered.computed_ahead


def test_users_in_host_memory_are_reloaded_instead_of_computed() -> None:
    half, all_of_them = (result(fleet(host_share=share), 0.3) for share in (0.5, 1.0))
    assert half.computed_ahead == pytest.approx(0.5 * 2304, rel=0.15)
    assert all_of_them.computed_ahead + all_of_them.computed_inline < 10
    assert all_of_them.reloads >= 600


def test_r26_killing_an_instance_loses_no_ranking_and_hits_recover() -> None:
    of = fleet()
    tau_s = of.tau_s
    load = traffic(0.5 * INSTANCES, of, regime="sessions", requests=2000, length=2304)
    end_s = load.requests / load.rate
    router = changed(of.router, ramp_s=10 * tau_s)
    kill = Change(time_s=0.25 * end_s, kind="kill", instance=0)
    back = Change(time_s=0.5 * end_s, kind="join", instance=0)
    watched = Watched(changed(of, changes=(), router=router), load)
    disturbed = simulate(changed(of, changes=(kill, back), router=router), load)
    calm = simulate(changed(of, router=router), load)
    assert disturbed.requests == calm.requests == 2000
    assert not [one for one in disturbed.paths if one.name == "lost"]
    assert disturbed.valid_share == 1.0
    assert calm.good_share - disturbed.good_share < 0.03
    late = [window for window in disturbed.windows if window.time_s > 0.7 * end_s]
    hits = sum(window.hits for window in late) / sum(window.requests for window in late)
    assert hits > 0.9 * calm.device_hits
    assert len(watched.fleet.instances) == INSTANCES


def test_what_a_killed_instance_owed_is_answered_elsewhere() -> None:
    of = fleet("inline_full")
    watched = Watched(of, traffic(2.5 * INSTANCES, of, requests=200, length=2304))
    kill = 0.5 * float(watched.workload.time_s[-1])
    watched.timeline.at(kill, lambda: watched.fleet.again(watched.fleet.instances[0].kill(), 0))
    visits = watched.run()
    assert len(visits) == len(watched.workload)
    assert all(visit.answered == 1 for visit in visits)
    assert not [visit for visit in visits if visit.rank_owner == 0 and visit.started_s > kill]


def test_an_instance_that_drains_gets_no_signals_and_serves_its_users() -> None:
    of = fleet()
    load = traffic(0.4 * INSTANCES, of, regime="sessions", requests=800, length=2304)
    middle_s = 0.5 * load.requests / load.rate
    of = changed(of, changes=(Change(time_s=middle_s, kind="drain", instance=1),))
    found = simulate(of, load)
    assert not [one for one in found.paths if one.name == "lost"]
    assert found.good_share > 0.97


def test_r33_a_rollout_serves_everybody_and_reuses_nothing_of_the_build_before() -> None:
    of = fleet()
    load = traffic(0.3 * INSTANCES, of, regime="sessions", requests=1000, length=2304)
    end_s = load.requests / load.rate
    changes = tuple(
        Change(time_s=(0.3 + 0.1 * number) * end_s, kind="rollout", instance=number)
        for number in range(INSTANCES)
    )
    found, calm = simulate(changed(of, changes=changes), load), simulate(of, load)
    assert not [one for one in found.paths if one.name == "lost"]
    assert found.valid_share == 1.0
    assert found.computed_ahead + found.computed_inline > calm.computed_ahead + calm.computed_inline + 20


def test_r31_overload_sheds_pre_inference_then_length_then_ranking() -> None:
    """Each is given up at a higher load than the one before."""
    of = world()
    loads = (0.2, 0.7, 1.5, 4.0, 30.0)
    found = [result(of, load, requests=900) for load in loads]

    def share(number: int, *names: str) -> float:
        one = found[number]
        rows = (*one.paths, *one.reasons)
        return sum(row.count for row in rows if row.name in names) / one.requests

    refused = [share(n, "load", "too_late", "rate", "footprint") for n in range(len(loads))]
    shortened = [share(n, "truncated", "degraded") for n in range(len(loads))]
    lost = [share(n, "lost") for n in range(len(loads))]
    assert refused[0] < 0.02
    assert refused[1] > 0.05
    assert shortened[1] < refused[1]
    assert shortened[2] > 0.2
    assert max(lost[:4]) == 0.0
    assert lost[4] > 0.0
    assert refused == sorted(refused)


def test_r21_copies_in_steps_add_little_to_the_p99_of_ranking() -> None:
    of = world(chunk_taus=0.25)
    rates = {"sessions": 0.8 / of.tau_s, "first_touch": 0.3 / of.tau_s}
    sweep = Bench(Lab(of, Traffic(requests=4000)), rates, 2048).interference()
    free, timed = (row.result for row in sweep.rows)
    assert min(free.reloads, timed.reloads) > 800
    assert min(free.spills, timed.spills) > 800
    assert timed.latency.p99 <= 1.05 * free.latency.p99


def test_copies_with_streams_of_their_own_do_not_take_the_models_time() -> None:
    small = {"device_bytes": 32 * MIB, "chunk_taus": 0.25}
    load = {"regime": "sessions", "gap_taus": 200.0, "requests": 600, "length": 2304}
    apart = result(fleet(shared_copies=False, **small), 0.3, **load)
    shared = result(fleet(**small), 0.3, **load)
    assert apart.reloads > 100
    assert apart.spills > 100
    assert apart.busy < shared.busy
    assert apart.good_share > 0.98


def test_r29_popular_users_do_not_pile_up() -> None:
    found = result(fleet(), 0.5, regime="popular", users=400, requests=2000, warmup=1000)
    assert found.load_max_over_mean < 1.6
    assert found.good_share > 0.98
