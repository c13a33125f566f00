"""What the relay benchmark sends and to whom, and the settings of its servers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from relaygr.bench.relay_script import Kind, Limits, Script, write_script
from relaygr.bench.relay_servers import Site, budget_settings, site_settings
from relaygr.bench.relay_users import People
from relaygr.config.load import load_config
from relaygr.core.errors import ConfigError
from relaygr.relay.budgets import FIXED_BUDGETS
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import INLINE_FULL, RELAY_FULL, VARIANTS, Variant, variant
from relaygr.sim.workload import generate

LIMITS = Limits.of(10.0, 2.0)
PEOPLE = People(512, 4, 1000, 0)
TRAFFIC = Traffic(
    regime="sessions", rate=80.0, requests=100, warmup=0, warmup_taus=20, tau_s=0.01, length=200
)


def script_of(how: Variant, servers: int = 2, traffic: Traffic = TRAFFIC, people: People = PEOPLE) -> Script:
    return write_script(how, generate(traffic), people, LIMITS, "run", servers, 0)


def test_limits_are_in_tau() -> None:
    assert (LIMITS.b_rank_ms, LIMITS.b_pipe_ms) == (20.0, 80.0)
    assert Limits.of(10.0, 5.0).b_pipe_ms == 100.0  # the longest lead and the ranking budget fit


@pytest.mark.parametrize("how", VARIANTS, ids=lambda how: how.name)
def test_steps_are_in_order_and_complete(how: Variant) -> None:
    script = script_of(how)
    assert [step.at_s for step in script.steps] == sorted(step.at_s for step in script.steps)
    counts = Counter((step.number, step.kind) for step in script.steps)
    for number, request in enumerate(script.requests):
        assert counts[number, Kind.RANK] == 1
        assert counts[number, Kind.PREFIX] == how.relay
        assert (counts[number, Kind.EVENTS] > 0) is (request.new > 0)
    ranks = {step.number: step.at_s for step in script.steps if step.kind is Kind.RANK}
    for number, request in enumerate(script.requests):
        assert ranks[number] == request.time_s + request.lead_s


def test_both_laps_and_the_events_of_a_user_go_to_one_server() -> None:
    script = script_of(RELAY_FULL)
    doors: dict[int, set[int]] = {}
    for step in script.steps:
        doors.setdefault(script.requests[step.number].user, set()).add(step.door)
    assert {len(found) for found in doors.values()} == {1}
    assert {door for found in doors.values() for door in found} == {0, 1}
    homes = {(name, door) for door, name in script.names}
    assert homes == {(f"run-{user}", min(found)) for user, found in doors.items()}


def test_without_affinity_each_lap_goes_anywhere_and_every_server_knows_the_user() -> None:
    script = script_of(variant("relay_no_affinity"))
    laps = {(step.number, step.kind): step.door for step in script.steps if step.kind is not Kind.EVENTS}
    differ = sum(laps[n, Kind.PREFIX] != laps[n, Kind.RANK] for n in range(len(script.requests)))
    assert 0.3 < differ / len(script.requests) < 0.7
    assert Counter(door for door, _ in script.names) == Counter(
        {door: len({request.user for request in script.requests}) for door in (0, 1)}
    )
    events = Counter(step.number for step in script.steps if step.kind is Kind.EVENTS)
    assert set(events.values()) == {2}


def test_every_variant_meets_the_same_requests() -> None:
    scripts = [script_of(how, 1) for how in VARIANTS]
    assert len({script.requests for script in scripts}) == 1
    ranks = [
        [(step.at_s, step.data.split(b'"deadline_ms"')[0]) for step in script.steps if step.kind is Kind.RANK]
        for script in scripts
    ]
    for found in ranks:
        assert [at for at, _ in found] == [at for at, _ in ranks[0]]


def test_users_of_equal_histories_have_equal_events_by_another_name() -> None:
    one, other = PEOPLE.stored("a-1", 1, 64), PEOPLE.stored("b-1", 1, 64)
    assert one == other.replace(b'"b-1"', b'"a-1"')
    assert PEOPLE.stored("a-1", 1, 64) != PEOPLE.stored("a-1", 2, 64)
    more = PEOPLE.events("a-1", 1, 64, 70)
    whole = PEOPLE.stored("a-1", 1, 70)
    assert more.split(b'"timestamps":[')[1].split(b"]")[0] in whole


@pytest.mark.parametrize("how", VARIANTS, ids=lambda how: how.name)
def test_servers_are_set_as_the_variant_says(how: Variant, tmp_path: Path) -> None:
    settings = (
        *site_settings(tmp_path, tmp_path / "calibration.json", "fp32", 1 << 26),
        *budget_settings(LIMITS, FIXED_BUDGETS),
    )
    config = Site(tmp_path, settings).config(how)
    assert config.relay.enabled is how.relay
    assert config.relay.reuse is how.reuse
    assert config.relay.fallback_mode == ("ladder" if how.ladder else "full")
    assert bool(config.host.host_bytes) is how.host
    assert config.trigger.admit_all is how.admit_all
    assert (config.budgets.b_rank_ms, config.budgets.b_pipe_ms) == (20.0, 80.0)
    assert config.budgets.chunk_ms == FIXED_BUDGETS.chunk_ms


def test_own_settings_win_and_wrong_ones_are_named(tmp_path: Path) -> None:
    settings = site_settings(tmp_path, tmp_path / "calibration.json", "fp32", 1 << 26)
    site = Site(tmp_path, settings, ("trigger.u_max=0.9", "engine.device_bytes=128MiB"))
    config = site.config(RELAY_FULL)
    assert (config.trigger.u_max, config.engine.device_bytes) == (0.9, 1 << 27)
    assert load_config(overrides=site.of(INLINE_FULL)) == site.config(INLINE_FULL)
    with pytest.raises(ConfigError, match=r"trigger\.u_maxx"):
        Site(tmp_path, settings, ("trigger.u_maxx=1",)).config(RELAY_FULL)
