"""How fast a server of the benchmark is: its clock tau, what HTTP adds, and a simulator of that speed."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from relaygr.bench.relay_play import store_users
from relaygr.bench.relay_point import READ_RANKED
from relaygr.bench.relay_script import Limits
from relaygr.bench.relay_users import People
from relaygr.bench.relay_wire import Door, clock
from relaygr.config.settings import Config
from relaygr.relay.budgets import TAU_CANDIDATES, TAU_HISTORY, Budgets, auto_budgets, tau_ms
from relaygr.relay.calibration import load_calibration, save_calibration
from relaygr.relay.latency import Coefficients
from relaygr.sim.costs import Costs, Scatter
from relaygr.sim.world import World

_WARM = 5
_USERS = 40
_PAUSE_S = (0.02, 0.06)
_WINDOW_S = 5.0
_DEADLINE_MS = 10_000.0
_SPELLS = 0.05  # of passes, that are left out where loads would be run again


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds.

    Attributes:
        tau_ms: of full passes over 2,048 history tokens and 128 candidates, of users one at a time with
            pauses between, as the server times them: the median of each five seconds, and of those the
            median, the larger of the two in the middle. Where others share the processor, it has two speeds
            and changes between them every few seconds. A budget in units of the fast one is missed at the
            slow one, whatever is served; one in units of a slow spell is half a tau longer than it says.
        median_ms, p10_ms, p90_ms: of all those passes.
        fitted_tau_ms: what the server's own calibration says of that pass.
        overhead_ms: median of what such a request takes beyond its pass, from the time it is due: timer of
            the client, connection, parsing, event loops, threads that hand it on.
        ratios: of every pass, its time over tau; hit_ratios: of rankings that found the history, one at a
            time with pauses between, over the time that the coefficients give them.
        coefficients: of the calibration, raised to the measured tau.
    """

    tau_ms: float
    median_ms: float
    p10_ms: float
    p90_ms: float
    fitted_tau_ms: float
    overhead_ms: float
    samples: int
    coefficients: Coefficients
    ratios: tuple[float, ...] = ()
    hit_ratios: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Lone:
    """A pass over 2,048 history tokens that met no other: when it began, what it took, what else did, and
    whether it found the history.
    """

    at_s: float
    pass_ms: float
    rest_ms: float
    hit: bool


class Lonely:
    """Times such passes on a server; full ones on one that keeps nothing between requests."""

    def __init__(self, door: Door, people: People) -> None:
        self._door, self._people = door, people
        self._names: list[str] = []
        self._rng = random.Random(0)
        self._count = 0

    async def time(self, seconds: float, least: int = 1) -> list[Lone]:
        """Rank users, one at a time with pauses between, for so long.

        Raises:
            BackendError: the server fails.
        """
        await self._store()
        found: list[Lone] = []
        start_s = clock()
        while (now_s := clock() - start_s) < seconds or len(found) < least:
            number = self._count % _USERS
            self._count += 1
            request = self._people.rank(self._names[number], number, _DEADLINE_MS, None)
            pause_s = self._rng.uniform(*_PAUSE_S)
            due_s = clock() + pause_s
            await asyncio.sleep(pause_s)
            answer = READ_RANKED.decode(await self._door.ask(request))
            whole_ms = 1000 * (clock() - due_s)
            # Alone, it waits in a queue for no other request, but for a thread to take it up.
            rest_ms = whole_ms - answer.compute_ms
            found.append(Lone(now_s, answer.compute_ms, rest_ms, answer.path == "hit"))
        return found

    async def _store(self) -> None:
        if self._names:
            return
        names = [self._people.name("tau", number) for number in range(_USERS)]
        wanted = [self._people.stored(name, number, TAU_HISTORY) for number, name in enumerate(names)]
        await store_users(self._door, wanted, names)
        self._names = names


async def measure_speed(door: Door, people: People, calibration: Path, seconds: float) -> Speed:
    """Rank users, one at a time.

    Args:
        door: to a server that keeps nothing between requests, and has written `calibration`.
        seconds: for so long.

    Raises:
        BackendError: it fails.
        ConfigError: the calibration cannot be read.
    """
    lone = (await Lonely(door, people).time(seconds, 2 * _WARM))[_WARM:]
    windows: dict[int, list[float]] = defaultdict(list)
    for one in lone:
        windows[int(one.at_s / _WINDOW_S)].append(one.pass_ms)
    passes = [one.pass_ms for one in lone]
    fitted = load_calibration(calibration).coefficients
    most = max(map(len, windows.values()))
    tau = statistics.median_high(statistics.median(one) for one in windows.values() if len(one) >= most / 2)
    tenths = statistics.quantiles(passes, n=10)
    return Speed(
        tau_ms=tau,
        median_ms=statistics.median(passes),
        p10_ms=tenths[0],
        p90_ms=tenths[-1],
        fitted_tau_ms=tau_ms(fitted),
        overhead_ms=statistics.median(one.rest_ms for one in lone),
        samples=len(passes),
        coefficients=fitted.scaled(tau / tau_ms(fitted)),
        ratios=tuple(round(one / tau, 4) for one in passes),
    )


async def measure_hits(door: Door, people: People, speed: Speed, seconds: float) -> Speed:
    """`speed` with what hits take beside the fit: what surrounds a pass is a good part of one.

    Args:
        door: to a server that keeps what it computed.

    Raises:
        BackendError: it fails.
    """
    lonely = Lonely(door, people)
    await lonely.time(0.0, _USERS)  # the first pass of a user finds nothing
    hits = [one.pass_ms for one in await lonely.time(seconds, 2 * _WARM) if one.hit]
    fitted_ms = speed.coefficients.hit_ms(TAU_HISTORY, 0, TAU_CANDIDATES)
    return msgspec.structs.replace(speed, hit_ratios=tuple(round(ms / fitted_ms, 4) for ms in hits))


def level_calibration(file: Path, speed: Speed) -> None:
    """Bring a calibration to the level of the measured tau, so that servers and simulator have one clock.

    Raises:
        ConfigError: it cannot be read or written.
    """
    level, stored = speed.tau_ms / speed.fitted_tau_ms, load_calibration(file)
    points = tuple(
        msgspec.structs.replace(point, times_ms=tuple(level * ms for ms in point.times_ms))
        for point in stored.points
    )
    save_calibration(
        file, msgspec.structs.replace(stored, coefficients=stored.coefficients.scaled(level), points=points)
    )


def budgets_at(speed: Speed, rank_taus: float, page_tokens: int, max_tokens: int) -> Budgets:
    """What a server of this speed would derive, with the ranking budget in units of tau."""
    found, limits = (
        auto_budgets(speed.coefficients, page_tokens, max_tokens),
        Limits.of(speed.tau_ms, rank_taus),
    )
    return replace(
        found,
        b_rank_ms=limits.b_rank_ms,
        b_pipe_ms=limits.b_pipe_ms,
        t_life_ms=max(found.t_life_ms, found.lead_p99_ms + limits.b_rank_ms),
    )


def calm(ratios: Sequence[float]) -> tuple[float, ...]:
    """All but the slowest `_SPELLS` of them, in order.

    One pass in a hundred that others made twice as long is enough for no load to pass in a simulation; real
    loads that such a spell made fail are run again.
    """
    return tuple(sorted(ratios)[: math.ceil((1 - _SPELLS) * len(ratios))])


def simulated(
    speed: Speed, calibration: Path, budgets: Budgets, config: Config, token_bytes: int, instances: int = 1
) -> World:
    """The world of the simulator in which servers of these settings and this leveled calibration are."""
    # Long passes of all lengths scatter like those behind tau, short ones like hits: those were measured for
    # long enough to meet all that the machine's other work does to them.
    scatter = [Scatter(fit_ms=speed.tau_ms, chunk=chunk, ratios=speed.ratios) for chunk in (False, True)]
    if speed.hit_ratios:
        hit_ms = speed.coefficients.hit_ms(TAU_HISTORY, 0, TAU_CANDIDATES)
        scatter.append(Scatter(fit_ms=hit_ms, chunk=False, ratios=speed.hit_ratios, hit=True))
    costs = Costs(
        coefficients=load_calibration(calibration).coefficients,
        scatter=tuple(scatter) if speed.ratios else (),
        overhead_ms=speed.overhead_ms,
        token_bytes=token_bytes,
    )
    return World(
        costs=costs,
        budgets=budgets,
        relay=config.relay,
        trigger=config.trigger,
        host=config.host,
        router=config.router,
        scheduler=config.scheduler,
        instances=instances,
        slots=config.trigger.model_slots or 1,
        page_tokens=config.engine.page_tokens,
        device_bytes=config.engine.device_bytes,
    )
