"""From searches on a stub to the report: ratios, their simulated twins, notes, tables and plots."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from relay_stub import RelayStub
from rich.console import Console

from relaygr.bench.relay import ablation_rate_taus
from relaygr.bench.relay_experiment import Case, Confirming, Effort
from relaygr.bench.relay_ground import Ground
from relaygr.bench.relay_loads import Loads
from relaygr.bench.relay_plot import relay_svg
from relaygr.bench.relay_report import report
from relaygr.bench.relay_result import Ablation, Confirmed, RelayReport
from relaygr.bench.relay_script import Limits
from relaygr.bench.relay_spec import RelaySpec
from relaygr.bench.relay_speed import Speed
from relaygr.bench.relay_time import Allotment
from relaygr.bench.relay_two import compare
from relaygr.bench.relay_users import People
from relaygr.bench.relay_wire import Door, clock, new_loop
from relaygr.cli.bench_relay_tables import print_report
from relaygr.cli.main import main
from relaygr.core.errors import ConfigError
from relaygr.models.presets import preset
from relaygr.relay.latency import Coefficients
from relaygr.sim.costs import Costs
from relaygr.sim.experiments import Experiment
from relaygr.sim.protocol import Lengths, Outcome, Rates, Search, Share
from relaygr.sim.run import simulate
from relaygr.sim.traffic import Traffic
from relaygr.sim.variants import Variant
from relaygr.sim.world import World, budgets_of

LIMITS = Limits(tau_ms=10.0, b_rank_ms=1000.0, b_pipe_ms=3000.0)
COEFFICIENTS = Coefficients(t0_ms=1.0, t1_ms=0.001, t2_ms=1e-6, t_launch_ms=0.1)
SPEED = Speed(
    tau_ms=10.0,
    median_ms=9.5,
    p10_ms=9.0,
    p90_ms=12.0,
    fitted_tau_ms=11.0,
    overhead_ms=1.0,
    samples=3,
    coefficients=COEFFICIENTS,
)
TRAFFIC = Traffic(warmup=2, tau_s=0.01, candidates=128)
EFFORT = Effort(
    seeds=(0,), least=10, most=10, least_length=10, tries=2, rate_step=1.1, caution=1.0, longest=2432
)


class _Servers:
    def __init__(self, door: Door) -> None:
        self.door = door

    async def doors(self, settings: object, count: int) -> tuple[Door, ...]:
        return (self.door,)

    def check(self) -> None:
        pass


class _Machine:
    """Slow in the next so many looks at it."""

    def __init__(self, slow: int = 0) -> None:
        self.slow, self.waits = slow, 0

    async def holds(self) -> bool:
        self.slow -= 1
        return self.slow < 0

    async def wait(self) -> bool:
        self.waits += 1
        return True


class _Site:
    def of(self, how: Variant) -> tuple[str, ...]:
        return ()


def search(name: str, best: float | None, rate: float, length: int) -> Search:
    share = Share(seed=0, requests=9, good=1.0, valid=1.0, p99_ms=15.0, served=1.0)
    probe = Outcome(variant=name, rate=rate, length=length, planned=1, shares=(share,))
    return Search(best=best, probes=(probe,))


def experiment(regime: str, base: float | None) -> Experiment:
    lengths = Lengths(q0=None, base=search("inline_full", None, 1.0, 2048))
    rates = None
    if base is not None:
        lengths = Lengths(
            q0=base / 2,
            base=search("inline_full", base, base, 2048),
            inline=search("inline_full", 2048, base / 2, 2048),
            relay=search("relay_full", 2304, base / 2, 2304),
        )
        rates = Rates(
            length=2048,
            inline=search("inline_full", base, base, 2048),
            relay=search("relay_full", 2 * base, 2 * base, 2048),
        )
    return Experiment(regime=regime, rank_taus=2.0, candidates=128, tau_ms=10.0, lengths=lengths, rates=rates)


def confirm(
    stub: RelayStub,
    case: Case,
    simulated: Experiment,
    hear: Callable[[str], None] = lambda text: None,
    effort: Effort = EFFORT,
    machine: _Machine | None = None,
) -> Confirmed:
    async def run() -> Confirmed:
        async with stub.door() as door:
            people = People(effort.longest + 512, 4, 1000, 0)
            loads = Loads(_Site(), _Servers(door), people, LIMITS)  # type: ignore[arg-type]
            time = Allotment(clock() + 600, case.parts())  # tries end it, on a slow machine too
            steady = machine or _Machine()
            return await Confirming(loads, case, effort, time, steady, note).confirm(simulated)

    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        hear(text)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        found = runner.run(run())
    assert any("passes" in one or "fails" in one for one in said)
    return found


@pytest.fixture(scope="module")
def confirmed() -> Confirmed:
    """Everything passes, so that every search goes up from where the simulator ended until its tries end."""
    return confirm(RelayStub(), Case(2.0, TRAFFIC), experiment("first_touch", 40.0))


def ground(folder: Path) -> Ground:
    return Ground(
        folder=folder,
        shape=preset("hstu-tiny"),
        dtype="fp32",
        token_bytes=512,
        speed=SPEED,
        seed=0,
        own=("trigger.u_max=0.9",),
    )


def made(folder: Path, *found: Confirmed) -> RelayReport:
    return report(RelaySpec(), ground(folder), found, [], [], 12.0)


def test_searches_begin_where_the_simulator_ended(confirmed: Confirmed) -> None:
    # These servers are far within the budget: steps of rates are four times as large, of lengths twice.
    assert [trial.rate for trial in confirmed.base.trials] == pytest.approx([40.0, 40.0 * 1.1**4])
    assert confirmed.base.best == pytest.approx(40.0 * 1.1**4)
    assert confirmed.base.best is not None
    assert confirmed.q0 == pytest.approx(confirmed.base.best / 2)
    assert confirmed.inline_length is not None
    # 2,048 tokens passed at twice the rate already.
    assert [trial.length for trial in confirmed.inline_length.trials] == [2176, 2432]
    assert confirmed.length == 2432
    assert confirmed.inline_rate is not None
    assert {trial.length for trial in confirmed.inline_rate.trials} == {2432}
    assert confirmed.relay_rate is not None
    # Below the simulator's, whose baseline was no faster than the real one.
    assert confirmed.relay_rate.trials[0].rate == pytest.approx(0.65 * 80.0)
    assert confirmed.relay_length is not None
    # The longest that is tried passed at a higher rate already.
    assert (confirmed.relay_length.best, confirmed.relay_length.trials) == (2432, ())
    assert confirmed.length_ratio == 1.0
    assert confirmed.p99_over_budget is not None
    assert 0 < confirmed.p99_over_budget < 1
    assert confirmed.p99_over_budget_simulated == pytest.approx(15.0 / 20.0)


def test_a_baseline_that_never_passes_has_no_ratio(tmp_path: Path) -> None:
    stub = RelayStub()
    stub.truncate = 1
    again = msgspec.structs.replace(TRAFFIC, regime="sessions", warmup_taus=5)
    found = confirm(stub, Case(2.0, again), experiment("sessions", None))
    assert (found.base.best, found.q0, found.length_ratio, found.rate_ratio) == (None, None, None, None)
    assert found.p99_over_budget is None
    notes = made(tmp_path, found).notes
    assert "sessions, 2 tau, 128 candidates: baseline infeasible" in notes


def test_a_rate_that_no_load_confirmed_is_that_of_the_longer_histories(tmp_path: Path) -> None:
    stub = RelayStub()
    slow = 0

    def late(text: str) -> None:
        # Every load of the search for the relay's rate, and no other, is too slow.
        nonlocal slow
        if text.endswith("requests"):
            rate = "relay_full" in text and "2,432" in text and slow < 2 * EFFORT.tries
            slow += rate
            stub.hit_ms = stub.full_ms = 200.0 if rate else 1.0

    found = confirm(stub, Case(2.0, TRAFFIC), experiment("first_touch", 40.0), late)
    assert found.relay_rate is not None
    assert found.relay_length is not None
    assert not any(trial.passes for trial in found.relay_rate.trials)
    assert found.relay_length.best == found.length == 2432
    assert found.relay_rate.trial is None
    assert (found.relay_rate.best, found.rate_ratio_bound) == (found.q0, "open")
    notes = made(tmp_path, found).notes
    assert any("relay_rate" in note and "follows from another search" in note for note in notes)


def test_the_relays_length_in_sessions_starts_near_the_expected_one() -> None:
    """As little is left of the time: users who come once are searched for from farther below."""
    effort = replace(EFFORT, caution=0.5, longest=8192)
    again = msgspec.structs.replace(TRAFFIC, regime="sessions", warmup_taus=5)
    first: dict[str, int] = {}
    for traffic in (TRAFFIC, again):
        simulated = experiment(traffic.regime, 40.0)
        lengths = msgspec.structs.replace(simulated.lengths, relay=Search(best=4096.0, probes=()))
        found = confirm(
            RelayStub(),
            Case(2.0, traffic),
            msgspec.structs.replace(simulated, lengths=lengths),
            effort=effort,
        )
        assert found.relay_length is not None
        assert found.length == 2432
        first[traffic.regime] = found.relay_length.trials[0].length
    assert first == {"first_touch": 3328, "sessions": 4096 - 128}


def first_runs(stub: RelayStub, failing: int) -> Callable[[str], None]:
    """The first so many runs get no whole answers."""
    runs = 0

    def hear(text: str) -> None:
        nonlocal runs
        if text.endswith("requests"):
            runs += 1
            stub.truncate = 1 if runs <= failing else None

    return hear


@pytest.mark.parametrize(
    ("failing", "slow", "again", "ran"),
    [
        (1, 0, False, 1),  # one failed run of a machine as fast as it was decides
        (1, 0, True, 2),
        (3, 0, True, 2),
        (1, 1, False, 2),
        (2, 2, False, 3),
        (3, 1, True, 2),
        (9, 9, True, 3),
    ],
)
def test_what_fails_is_run_again_with_the_same_draws(failing: int, slow: int, again: bool, ran: int) -> None:
    stub, machine = RelayStub(), _Machine(slow)
    effort = replace(EFFORT, tries=1, again=again)
    once = msgspec.structs.replace(TRAFFIC, warmup=0)
    found = confirm(
        stub, Case(2.0, once), experiment("first_touch", 40.0), first_runs(stub, failing), effort, machine
    )
    first = found.base.trials[0]
    assert first.passes == (ran > failing)
    assert len(first.failed_before) == ran - 1
    assert machine.waits >= min(slow, ran - 1)
    one, *others = [*first.failed_before, *first.points]
    assert {(point.seed, point.rate, point.planned) for point in others} <= {
        (one.seed, one.rate, one.planned)
    }


def test_the_report_says_what_was_run_again(tmp_path: Path) -> None:
    stub = RelayStub()
    effort = replace(EFFORT, again=True)
    found = confirm(
        stub, Case(2.0, TRAFFIC), experiment("first_touch", 40.0), first_runs(stub, 1), effort, _Machine(1)
    )
    whole = report(RelaySpec(), ground(tmp_path), [found], [], [], 12.0, waited_s=7.0)
    assert whole.waited_s == 7.0
    assert any(note.startswith("1 loads that failed were run again") for note in whole.notes)


def test_the_report_has_every_figure_with_its_twin(confirmed: Confirmed, tmp_path: Path) -> None:
    again = msgspec.structs.replace(confirmed, regime="sessions")
    whole = msgspec.json.decode(msgspec.json.encode(made(tmp_path, confirmed, again)))
    figures = ("length_ratio", "rate_ratio", "sessions_length_ratio", "sessions_rate_ratio")
    for name in (*figures, "relay_p99_over_budget"):
        assert isinstance(whole[name], float)
        assert isinstance(whole[f"{name}_simulated"], float)
    assert whole["rate_ratio_simulated"] == 2.0
    assert (whole["paper_length_ratio"], whole["paper_rate_ratio"]) == (1.5, 3.6)
    assert "trigger.u_max=0.9" in whole["settings"]
    point = whole["experiments"][0]["relay_rate"]["trials"][0]["points"][0]
    assert point["requests"] == 10
    assert point["paths"] == [{"name": "hit", "count": 10}]
    assert any("relay_rate was not searched to its end" in note for note in whole["notes"])
    assert msgspec.json.decode(msgspec.json.encode(made(tmp_path, confirmed)), type=RelayReport)


def test_ablations_run_at_half_of_a_rate_that_loads_confirmed(confirmed: Confirmed) -> None:
    assert confirmed.relay_rate is not None
    assert confirmed.relay_rate.best is not None
    assert ablation_rate_taus(confirmed) == pytest.approx(confirmed.relay_rate.best * LIMITS.tau_ms / 2000)
    bound = msgspec.structs.replace(confirmed.relay_rate, best=confirmed.q0, runs=())
    assert ablation_rate_taus(msgspec.structs.replace(confirmed, relay_rate=bound)) == 0.4


def test_a_busy_machine_is_said(confirmed: Confirmed, tmp_path: Path) -> None:
    def notes(load: float | None) -> str:
        return " ".join(report(RelaySpec(), ground(tmp_path), [confirmed], [], [], 1.0, load).notes)

    assert "load 3.2" in notes(3.2)
    assert "not quiet" not in notes(0.1) + notes(None)


def test_without_searches_there_are_no_figures(tmp_path: Path) -> None:
    assert made(tmp_path).length_ratio is None
    assert made(tmp_path).relay_p99_over_budget is None


def test_tables_and_plot(confirmed: Confirmed, tmp_path: Path) -> None:
    world = World(
        costs=Costs(coefficients=COEFFICIENTS), budgets=budgets_of(Costs(coefficients=COEFFICIENTS))
    )
    result = simulate(world, Traffic(requests=50, tau_s=0.01, length=256))
    point = confirmed.base.trials[0].points[0]
    traffic = msgspec.structs.replace(TRAFFIC, rate=3.0)
    twin = compare(traffic, [point, point], [result])
    assert twin.p50_ms == point.latency.p50
    assert twin.p50_ms_simulated == result.latency.p50
    assert twin.good_share == 1.0
    ablation = Ablation(
        variant="relay_full",
        regime="sessions",
        rate=3.0,
        length=256,
        servers=2,
        points=(point,),
        simulated=(result,),
    )
    alone = msgspec.structs.replace(ablation, variant="remote_fetch", points=())
    whole = msgspec.structs.replace(
        made(tmp_path, confirmed), twins=(twin,), ablations=(ablation, alone), seconds=1.0
    )
    out = io.StringIO()
    print_report(Console(file=out, width=200), whole)
    for wanted in (
        "1.00x",
        "paper, up to",
        "1.50x",
        "relay_full, rate at L0",
        "remote_fetch",
        "- /",
        "trigger",
    ):
        assert wanted in out.getvalue() or wanted == "trigger"
    svg = relay_svg(whole)
    assert svg.startswith("<svg")
    assert "2432 tokens" in svg.replace(",", "") or "2,560 tokens" in svg


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--preset", "hstu-huge"], "hstu-huge"),
        (["--minutes", "0.01"], "--minutes"),
        (["--twin"], "--twin"),
        (["--seed", "-1"], "--seed"),
        (["--json", "/"], "--json"),
    ],
)
def test_wrong_options_end_with_a_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object) -> None:
        raise AssertionError("it went on to measure")

    monkeypatch.setattr("relaygr.bench.relay.bench_relay", measured)
    with pytest.raises(SystemExit) as left:
        main(["bench", "relay", "--quick", *options])
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_cases_of_the_runs() -> None:
    quick, full = RelaySpec(), RelaySpec(quick=False, preset="hstu-small", minutes=55)
    assert [case.name for case in quick.cases()] == [
        "first_touch, 2 tau, 128 candidates",
        "sessions, 2 tau, 128 candidates",
    ]
    assert len(quick.seeds) == 1
    assert len(full.seeds) == 5
    assert {case.rank_taus for case in full.cases()} == {2.0, 3.0, 5.0}
    assert {case.traffic.candidates for case in full.cases()} == {128, 2048}
    assert RelaySpec(quick=False, twin=True).cases() == []
    with pytest.raises(ConfigError, match="no-such"):
        RelaySpec(preset="no-such")


def test_a_ratio_says_what_it_is_of_the_real_one(confirmed: Confirmed, tmp_path: Path) -> None:
    """An edge that was not searched to its end can only be too low."""

    def ended(relay: bool, inline: bool) -> Confirmed:
        assert confirmed.relay_length is not None
        assert confirmed.inline_length is not None
        return msgspec.structs.replace(
            confirmed,
            relay_length=msgspec.structs.replace(confirmed.relay_length, bracketed=relay),
            inline_length=msgspec.structs.replace(confirmed.inline_length, bracketed=inline),
        )

    assert ended(True, True).length_ratio_bound == "settled"
    assert ended(False, True).length_ratio_bound == "at least"
    assert ended(True, False).length_ratio_bound == "at most"
    assert ended(False, False).length_ratio_bound == "open"
    assert msgspec.structs.replace(confirmed, relay_length=None).length_ratio_bound is None
    whole = made(tmp_path, ended(False, True))
    assert whole.length_ratio_bound == "at least"
    assert whole.sessions_length_ratio_bound is None
    out = io.StringIO()
    print_report(Console(file=out, width=200), whole)
    assert "at least 1.00x" in out.getvalue()
