"""`bench gateway`: what a gateway adds to a request, and what a routing decision costs."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from msgspec.structs import replace

from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.bench.serve_process import HOST, ServerProcess, free_port
from relaygr.config.relay import Member, RouterConfig
from relaygr.core.errors import BackendError, ConfigError
from relaygr.relay.membership import Feedback
from relaygr.relay.rendezvous import Kind
from relaygr.relay.route import Route
from relaygr.relay.router import Router

_KINDS: tuple[Kind, ...] = ("blake2b", "mix64")
_MEMBERS = (4, 64, 1000)
_BLOCK = 100
_WARM_UP = 300
_STUB_S = 30.0


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """What to measure.

    Attributes:
        requests: rankings on each of the two ways.
        candidates: of each.
    """

    requests: int = 3000
    candidates: int = 256

    def __post_init__(self) -> None:
        for option, value, high in (
            ("--requests", self.requests, 1_000_000),
            ("--candidates", self.candidates, 16_384),
        ):
            if not 1 <= value <= high:
                raise ConfigError(option, f"{value} is outside [1, {high}]")


class Way(msgspec.Struct, frozen=True):
    """Milliseconds from a request to its answer, one request at a time."""

    median_ms: float
    p99_ms: float


class Decision(msgspec.Struct, frozen=True):
    """Microseconds of one decision: of a user who is on no member, and of one who is."""

    hash: Kind
    members: int
    new_us: float
    placed_us: float


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `bench gateway --json` writes; `load` is the machine's load average when it ended."""

    cpu: str
    cores: int
    load: float
    requests: int
    request_bytes: int
    answer_bytes: int
    direct: Way
    gateway: Way
    decisions: list[Decision]

    @property
    def added_ms(self) -> float:
        return self.gateway.median_ms - self.direct.median_ms


def bench_gateway(spec: GatewaySpec, tell: Callable[[str], None]) -> GatewayReport:
    """Time rankings of an instance that computes nothing, directly and through a gateway, by turns.

    Raises:
        BackendError: a process did not start.
    """
    tell("decisions")
    decisions = [_decision(kind, members) for kind in _KINDS for members in _MEMBERS]
    request = msgspec.json.encode({"user": "user-1", "candidates": list(range(spec.candidates))})
    scores = [[round(0.001 * place, 6)] * 2 for place in range(spec.candidates)]
    answer = msgspec.json.encode({"user": "user-1", "scores": scores, "path": "hit"})
    stub_port = free_port()
    stub = subprocess.Popen(
        [sys.executable, "-m", "relaygr.bench.gateway_stub", str(stub_port), answer.decode()]
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = ("serving.log_level=warning",)
            member = ("--member", f"a=http://{HOST}:{stub_port}")
            _until_up(stub, stub_port)
            with ServerProcess(Path(folder), settings, command=("gateway", *member)) as gateway:
                ways = asyncio.run(_ways(f"http://{HOST}:{stub_port}", gateway.url, request, spec, tell))
    finally:
        stub.kill()
        stub.wait()
    return GatewayReport(
        cpu=cpu_model(),
        cores=usable_cores(),
        load=round(os.getloadavg()[0], 2),
        requests=spec.requests,
        request_bytes=len(request),
        answer_bytes=len(answer),
        direct=ways[0],
        gateway=ways[1],
        decisions=decisions,
    )


async def _ways(
    direct: str, gateway: str, body: bytes, spec: GatewaySpec, tell: Callable[[str], None]
) -> tuple[Way, Way]:
    times: tuple[list[float], list[float]] = ([], [])
    async with aiohttp.ClientSession() as session:
        for url in (direct, gateway):
            await _block(session, url, body, _WARM_UP)
        while len(times[1]) < spec.requests:
            tell(f"{len(times[1])} of {spec.requests} requests")
            for found, url in zip(times, (direct, gateway), strict=True):
                found += await _block(session, url, body, min(_BLOCK, spec.requests - len(found)))
    return _way(times[0]), _way(times[1])


async def _block(session: aiohttp.ClientSession, url: str, body: bytes, count: int) -> list[float]:
    """Seconds of `count` requests in turn."""
    found = []
    for _ in range(count):
        start_s = time.perf_counter()
        async with session.post(f"{url}/v1/rank", data=body) as answer:
            await answer.read()
        found.append(time.perf_counter() - start_s)
        if answer.status != 200:
            raise BackendError(f"{url} answered {answer.status}")
    return found


def _way(seconds: list[float]) -> Way:
    ordered = sorted(seconds)
    return Way(1000 * statistics.median(ordered), 1000 * ordered[int(0.99 * (len(ordered) - 1))])


def _decision(kind: Kind, count: int) -> Decision:
    """Medians of short runs, by processor time: other processes do not count."""
    members = tuple(Member(id=f"member-{number:04}", url=f"http://h{number}:1") for number in range(count))
    router = Router(replace(RouterConfig(), members=members, hash=kind), 1.0, 0.0)
    for one in members:
        router.members.hear(one.id, Feedback(), 0.0)

    def run(start: int, number: int) -> float:
        begin_s = time.process_time()
        for user in range(start, start + number):
            route = router.route_prefix(f"user-{user}", 0.0)
            assert isinstance(route, Route)
            router.done(route.member)
        return 1e6 * (time.process_time() - begin_s) / number

    new = [run(200 * turn, 200) for turn in range(15)]
    placed = [run(200 * turn, 200) for turn in range(15)]
    return Decision(kind, count, statistics.median(new), statistics.median(placed))


def _until_up(stub: subprocess.Popen[bytes], port: int) -> None:
    end_s = time.monotonic() + _STUB_S
    while time.monotonic() < end_s and stub.poll() is None:
        try:
            asyncio.run(_touch(port))
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise BackendError("the stub instance did not start")


async def _touch(port: int) -> None:
    _, writer = await asyncio.open_connection(HOST, port)
    writer.close()
    await writer.wait_closed()
