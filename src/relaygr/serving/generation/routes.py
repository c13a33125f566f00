"""The operations of generation and its catalogues."""

from __future__ import annotations

from relaygr.engine.deadlines import deadline_ms
from relaygr.serving.bodies import owner_of
from relaygr.serving.endpoint import Call, Operation
from relaygr.serving.generation import wire
from relaygr.serving.generation.desk import GenerateDesk
from relaygr.serving.told import heed
from relaygr.serving.waiting import ClientGoneError


async def generate(call: Call) -> wire.GenerateAnswer:
    service, body, tenant = call.service, call.body, call.caller.tenant
    desk, limits = service.desk(), service.config.generator
    left_ms = deadline_ms(body.deadline_ms, limits.deadline_ms, limits.deadline_max_ms)
    history = seen = None
    if body.user is not None:
        heed(service, call.headers, tenant, (body.user,))
        owner, histories = owner_of(tenant, body.user), service.histories
        if body.exclude_seen:
            (history, seen), left_ms = await histories.whole_in_time("generate", owner, left_ms)
        else:
            history, left_ms = await histories.in_time("generate", owner, None, left_ms)
    try:
        answer = await desk.generate(tenant, body, history, seen, left_ms, call.request_id, call.gone)
    except ClientGoneError:
        service.metrics.disconnected("generate")
        raise
    timings = answer.timings
    call.timings["queue"], call.timings["prefill"] = timings.queue_ms, timings.prefill_ms
    call.timings["compute"] = timings.total_ms - timings.queue_ms
    return answer


async def catalogues(call: Call) -> wire.CataloguesAnswer:
    return _desk(call).catalogues()


async def load_catalogue(call: Call) -> wire.CataloguesAnswer:
    return await _desk(call).load_catalogue(call.body.path, call.body.allow_shrink)


async def rollback_catalogue(call: Call) -> wire.CataloguesAnswer:
    return await _desk(call).rollback_catalogue()


async def withdraw(call: Call) -> wire.CataloguesAnswer:
    return await _desk(call).withdraw(call.body.items)


async def restore(call: Call) -> wire.CataloguesAnswer:
    return await _desk(call).restore(call.body.items)


def _desk(call: Call) -> GenerateDesk:
    return call.service.desk()


GENERATION: tuple[Operation, ...] = (
    Operation(
        "POST", "/v1/generate", generate, "Generate items for a user or a prompt.",
        body=wire.GenerateBody, answer=wire.GenerateAnswer, errors=(404, 409, 504),
    ),
    Operation(
        "GET", "/v1/catalogues", catalogues, "The catalogue that serves, and those to go back to.",
        answer=wire.CataloguesAnswer, errors=(404,),
    ),
    Operation(
        "POST", "/v1/catalogues/load", load_catalogue,
        "Serve another catalogue from the next request on; a bad one leaves the present one serving.",
        body=wire.CatalogueBody, answer=wire.CataloguesAnswer, errors=(404, 409), admin=True,
    ),
    Operation(
        "POST", "/v1/catalogues/rollback", rollback_catalogue, "Serve the catalogue before this one again.",
        answer=wire.CataloguesAnswer, errors=(404, 409), admin=True,
    ),
    Operation(
        "POST", "/v1/catalogues/withdraw", withdraw,
        "Deny items from the next request on, until a newer build.",
        body=wire.ItemsBody, answer=wire.CataloguesAnswer, errors=(404,), admin=True,
    ),
    Operation(
        "POST", "/v1/catalogues/restore", restore, "Take withdrawals back.",
        body=wire.ItemsBody, answer=wire.CataloguesAnswer, errors=(404,), admin=True,
    ),
)  # fmt: skip
