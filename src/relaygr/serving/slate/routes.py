"""The operations of slates."""

from __future__ import annotations

from relaygr.listwise.request import Mode
from relaygr.serving.endpoint import Call, Operation
from relaygr.serving.slate import wire
from relaygr.serving.slate.desk import desk_of
from relaygr.serving.told import heed


async def slate(call: Call) -> wire.SlateAnswer:
    service, tenant = call.service, call.caller.tenant
    desk = desk_of(service)
    heed(service, call.headers, tenant, (call.body.user,))
    answer = await desk.slate(tenant, call.body, call.request_id, call.gone)
    call.timings["queue"], call.timings["compute"] = answer.queue_ms, answer.compute_ms
    call.timings["slate"] = sum(answer.stage_ms.values())
    return answer


async def card(call: Call) -> wire.SlateCard:
    return desk_of(call.service).card()


async def mode(call: Call) -> wire.SlateCard:
    desk = desk_of(call.service)
    desk.switch(Mode(call.body.mode))
    return desk.card()


async def outcomes(call: Call) -> wire.OutcomesAnswer:
    desk = desk_of(call.service)
    matched = desk.settle(call.caller.tenant, call.body.outcomes)
    return wire.OutcomesAnswer(matched.count(True), matched.count(False))


SLATES: tuple[Operation, ...] = (
    Operation(
        "POST", "/v1/slate", slate, "Make a list for a user: rank, then generate and evaluate lists.",
        body=wire.SlateBody, answer=wire.SlateAnswer, errors=(404, 409, 504),
    ),
    Operation(
        "GET", "/v1/slate", card, "What makes lists, and its limits.", answer=wire.SlateCard, errors=(404,),
    ),
    Operation(
        "POST", "/v1/slate/mode", mode,
        "Switch the list layer off, into the shadow, or on, from the next request on.",
        body=wire.SlateModeBody, answer=wire.SlateCard, errors=(404,), admin=True,
    ),
    Operation(
        "POST", "/v1/slate/outcomes", outcomes, "What came of returned lists.",
        body=wire.OutcomesBody, answer=wire.OutcomesAnswer, errors=(404,),
    ),
)  # fmt: skip
