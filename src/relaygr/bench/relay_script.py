"""What is sent, when, and to which server: the requests of a workload as a script for one variant."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from relaygr.bench.relay_users import People
from relaygr.core.ids import DEFAULT_TENANT, session_key
from relaygr.relay.rendezvous import preference
from relaygr.sim.variants import Variant
from relaygr.sim.workload import Request, Workload

# Events are sent this long before the trigger: they happened before the user came back.
_EVENTS_TAUS = 1.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds that a load goes by, the same for every variant.

    Attributes:
        tau_ms: the machine's own clock: a full pass over 2,048 history tokens and 128 candidates.
        b_rank_ms: ranking, from the time it is due.
        b_pipe_ms: a request, from its trigger.
    """

    tau_ms: float
    b_rank_ms: float
    b_pipe_ms: float

    @classmethod
    def of(cls, tau_ms: float, rank_taus: float) -> Limits:
        """The longest lead, 5 tau, and the ranking budget fit in a request's, which is at least 8 tau."""
        return cls(tau_ms=tau_ms, b_rank_ms=rank_taus * tau_ms, b_pipe_ms=max(8, 5 + rank_taus) * tau_ms)


class Kind(IntEnum):
    """Of a step; those that are due at the same time go in this order."""

    EVENTS = 0
    PREFIX = 1
    RANK = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to send.

    Attributes:
        at_s: when it is due, from the beginning.
        number: of its request in the workload.
        door: number of the server.
    """

    at_s: float
    kind: Kind
    number: int
    door: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Script:
    """Steps in order of time, and what has to be stored before them: the door and the request of each."""

    requests: tuple[Request, ...]
    steps: tuple[Step, ...]
    stored: tuple[tuple[int, bytes], ...]
    names: tuple[tuple[int, str], ...]
    limits: Limits


Place = Callable[[str], tuple[int, int]]
"""The servers of a user's two laps."""


def placing(variant: Variant, servers: int, seed: int) -> Place:
    """By rendezvous, both laps on one server; or any server each, if the variant has no affinity."""
    members = preference("blake2b", {str(number): 1.0 for number in range(servers)})
    rng = random.Random(seed)

    def owner(name: str) -> tuple[int, int]:
        best = members.owner(session_key(DEFAULT_TENANT, name))
        return best, best

    def anyone(_: str) -> tuple[int, int]:
        return rng.randrange(servers), rng.randrange(servers)

    return anyone if variant.random_owner else owner


def write_script(
    variant: Variant,
    workload: Workload,
    people: People,
    limits: Limits,
    run: str,
    servers: int = 1,
    seed: int = 0,
) -> Script:
    """The steps of `workload`.

    A server that may meet a user has the user's events, as if all of them read one store.
    """
    place, everywhere = placing(variant, servers, seed), range(servers)
    requests = tuple(workload)
    steps: list[Step] = []
    stored: list[tuple[int, bytes]] = []
    names: list[tuple[int, str]] = []
    for number, request in enumerate(requests):
        name = people.name(run, request.user)
        doors = place(name)
        homes = everywhere if variant.random_owner else (doors[1],)
        if request.first:
            data = people.stored(name, request.user, request.before)
            stored += [(home, data) for home in homes]
            names += [(home, name) for home in homes]
        if request.new:
            at_s = max(request.time_s - _EVENTS_TAUS * limits.tau_ms / 1000, 0.0)
            data = people.events(name, request.user, request.before, request.tokens)
            steps += [Step(at_s, Kind.EVENTS, number, home, data) for home in homes]
        if variant.relay:
            steps.append(Step(request.time_s, Kind.PREFIX, number, doors[0], people.prefix(name)))
        left_ms = limits.b_pipe_ms - 1000 * request.lead_s
        budget_ms = min(limits.b_rank_ms, left_ms) if variant.ladder else None
        data = people.rank(name, number, left_ms, budget_ms)
        steps.append(Step(request.time_s + request.lead_s, Kind.RANK, number, doors[1], data))
    steps.sort(key=lambda step: (step.at_s, step.kind))
    return Script(requests, tuple(steps), tuple(stored), tuple(names), limits)
