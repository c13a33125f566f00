"""Whole simulations: nothing is lost, equal seeds are equal, and known formulas come out."""

from __future__ import annotations

import pytest
from fleets import COSTS, Watched, changed, even_workload, traffic, world

from relaygr.config.settings import SchedulerConfig
from relaygr.relay.holds import State
from relaygr.sim.run import simulate
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import VARIANTS

NAMES = [one.name for one in VARIANTS]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("load", [0.1, 3.0])
def test_every_request_is_answered_once(name: str, load: float) -> None:
    """Also far beyond what the fleet can do."""
    fleet = world(name, instances=2)
    watched = Watched(fleet, traffic(load, fleet, regime="sessions", requests=400, length=2304))
    visits = watched.run()
    assert sorted((v.user, v.request.time_s) for v in visits) == sorted(
        (request.user, request.time_s) for request in watched.workload
    )
    assert all(visit.answered == 1 for visit in visits)
    assert all(visit.done_s >= visit.started_s >= visit.due_s for visit in visits)


def test_r25_afterwards_nothing_is_held() -> None:
    fleet = world()
    watched = Watched(fleet, traffic(0.5, fleet, requests=400, length=2304))
    watched.run()
    instance = watched.fleet.instances[0]
    watched.timeline.at(watched.timeline.now_s + 1.01 * fleet.budgets.t_life_ms / 1000, instance.expire)
    watched.run()
    assert instance.holds.live_bytes == 0
    assert instance.site.shelf.books.stats().pinned_pages == 0
    instance.site.shelf.books.audit()


def test_equal_seeds_give_equal_results() -> None:
    fleet = world(instances=3)
    load = traffic(1.0, fleet, regime="sessions", requests=500, length=2304)
    assert simulate(fleet, load) == simulate(fleet, load)
    other = simulate(fleet, changed(load, seed=1))
    assert other.latency != simulate(fleet, load).latency


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_class_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    """M/D/1: the mean wait is rho / (2 (1 - rho)) services."""
    alone = SchedulerConfig(rank_batch_max=1, rank_queue_max=1 << 20)
    fleet = changed(world("inline_full", scheduler=alone), budgets=_patient(world().budgets))
    result = simulate(fleet, traffic(load, fleet, length=2048, requests=30_000, warmup=2000))
    # Leads only shuffle Poisson arrivals, which stay Poisson.
    service_ms = 1000 * fleet.tau_s
    assert result.work.mean == pytest.approx(service_ms)
    assert result.wait.mean / service_ms == pytest.approx(load / (2 * (1 - load)), rel=0.06)
    assert result.busy == pytest.approx(load, rel=0.03)


def test_without_load_a_hit_costs_the_candidates_only() -> None:
    fleet = world()
    lead_s = 5 * fleet.tau_s
    watched = Watched(changed(fleet, variant=changed(fleet.variant, admit_all=True)), _lonely(lead_s))
    visits = watched.run()
    hit_s = COSTS.coefficients.hit_ms(4096, 0, 128) / 1000
    assert [visit.path for visit in visits] == ["hit"] * 5
    assert [visit.done_s - visit.due_s for visit in visits] == pytest.approx([hit_s] * 5)


def test_ranking_goes_on_from_the_chunks_that_are_done() -> None:
    fleet = world()
    lead_s = 1.0 * fleet.tau_s
    fleet = changed(fleet, variant=changed(fleet.variant, admit_all=True, ladder=False))
    visits = Watched(fleet, _lonely(lead_s)).run()
    assert {visit.path for visit in visits} == {"resumed"}
    for visit in visits:
        assert 0 < visit.cached < 4096
        assert visit.cached % fleet.page_tokens == 0
        assert visit.missing == 4096 - visit.cached
        assert visit.started_s - visit.due_s <= fleet.budgets.chunk_ms / 1000 + 1e-9


def test_ranking_waits_for_one_chunk_at_most() -> None:
    """Of one user the flights are long, and the rankings of all others find the slot free but for it."""
    fleet = world(instances=1)
    fleet = changed(fleet, variant=changed(fleet.variant, admit_all=True))
    tau_s = fleet.tau_s
    times = [0.0] + [0.05 * tau_s * number for number in range(1, 40)]
    leads = [5 * tau_s] + [0.3 * tau_s] * 39
    load = even_workload(times, list(range(40)), [8192] + [1] * 39, leads)
    visits = Watched(fleet, load).run()
    bound_s = fleet.budgets.chunk_ms / 1000
    tiny = [visit for visit in visits if visit.tokens == 1]
    assert len(tiny) == 39
    work_s = max(visit.done_s - visit.started_s for visit in tiny)
    waits = [visit.started_s - visit.due_s for visit in tiny]
    assert max(waits) <= bound_s + work_s + 1e-9
    assert max(waits) > bound_s / 4  # some did meet a chunk


def test_r4_r3_live_bytes_stay_in_their_bound_and_what_is_ready_stays() -> None:
    fleet = world(device_bytes=16 << 20, instances=1)
    fleet = changed(
        fleet, relay=changed(fleet.relay, h_relay_share=0.5), host=changed(fleet.host, host_bytes=0)
    )
    watched = Watched(fleet, traffic(0.9, fleet, regime="sessions", requests=1500, length=2304))
    instance = watched.fleet.instances[0]
    holds, keeper = instance.holds, instance.keeper
    ready_seen = 0
    for number, _ in enumerate(watched.steps(1)):
        assert holds.live_bytes <= holds.bound_bytes == 8 << 20
        if number % 10 == 0:
            for visit in list(keeper.users()):
                if holds.state(visit) in (State.READY, State.PINNED):
                    ready_seen += 1
                    assert instance.site.shelf.find(visit, keeper.held(visit)).device == keeper.held(visit)
    assert ready_seen > 20
    assert any(visit.reason in ("footprint", "rate") for visit in watched.visits)


def _patient(budgets: object) -> object:
    import dataclasses

    return dataclasses.replace(budgets, b_pipe_ms=1e9, b_rank_ms=1e9)  # type: ignore[type-var]


def _lonely(lead_s: float) -> object:
    return even_workload([0.0, 5.0, 10.0, 15.0, 20.0], list(range(5)), [4096] * 5, [lead_s] * 5)


def test_traffic_is_what_is_offered() -> None:
    fleet = world("inline_full")
    load = Traffic(rate=5.0, requests=800)
    assert simulate(fleet, load).rate == pytest.approx(5.0, rel=0.03)
