"""`bench serve`: load on a running server, at one rate or at the highest that passes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from relaygr.bench.machine import cpu_model, usable_cores
from relaygr.bench.serve_load import Load, Progress, remove_users, store_users
from relaygr.bench.serve_report import LoadResult, Search, ServeReport
from relaygr.bench.serve_slo import find_slo
from relaygr.bench.serve_spec import LoadSpec, SloSpec
from relaygr.bench.serve_users import Crowd
from relaygr.bench.serve_wire import Wire
from relaygr.core.errors import BackendError


def bench_serve(
    spec: LoadSpec, slo: SloSpec | None = None, progress: Progress = lambda text: None
) -> ServeReport:
    """Store users, load the server, remove the users.

    Raises:
        BackendError: the server cannot be reached or does not take the users.
    """
    if slo is not None:
        # What comes later than the target is of no use, and the server is told so.
        spec = replace(spec, deadline_ms=slo.slo_ms)
    try:
        load, search, left = asyncio.run(_run(spec, slo, progress))
    except* BackendError as group:
        raise first_error(group) from None
    return ServeReport(
        url=spec.url,
        cpu=cpu_model(),
        cores=usable_cores(),
        arrivals=spec.arrivals,
        users=spec.users,
        history=spec.history,
        candidates=spec.candidates,
        new_events=spec.new_events,
        prefix=spec.prefix,
        lead_ms=spec.lead_ms,
        deadline_ms=spec.deadline_ms,
        seed=spec.seed,
        load=load,
        search=search,
        users_left=left,
    )


async def _run(
    spec: LoadSpec, slo: SloSpec | None, progress: Progress
) -> tuple[LoadResult | None, Search | None, int]:
    async with connect(spec) as wire:
        crowd = Crowd(spec)
        load, search = None, None

        async def probe(rate: float, seed: int) -> LoadResult:
            return await Load(wire, crowd, replace(spec, rate=rate, seed=seed)).run(progress)

        try:
            await store_users(wire, crowd, progress)
            if slo is None:
                load = await Load(wire, crowd, spec).run(progress)
            else:
                search = await find_slo(probe, spec.rate, slo, progress)
        finally:
            left = await remove_users(wire, crowd, progress)
        return load, search, left


def connect(spec: LoadSpec) -> Wire:
    """Connections for a load."""
    return Wire(spec.url, spec.connections, spec.timeout_ms, api_key=spec.api_key, tenant=spec.tenant)


def first_error(group: BaseExceptionGroup[BackendError]) -> BackendError:
    """Of errors that happened at once, one: they are about the same server."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, BackendError)
    return error
