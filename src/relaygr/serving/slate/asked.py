"""From the body of a request to what the list layer takes."""

from __future__ import annotations

from relaygr.engine.slate.request import ItemsAsked, ShownAsked, SlateRequest
from relaygr.listwise.request import Mode
from relaygr.serving.slate import wire


def slate_request(
    tenant: str, body: wire.SlateBody, candidates: list[int], length: int, request_id: str
) -> SlateRequest:
    """What was sent as what the list layer takes; `length` where the body names none."""
    shown = None
    if body.shown is not None:
        shown = ShownAsked(
            ids=body.shown.ids,
            attributes=body.shown.attributes,
            vectors=body.shown.vectors,
            watch=body.shown.watch,
            survival=body.shown.survival,
            page=body.shown.page,
        )
    return SlateRequest(
        # Generators draw by this id.
        request_id=request_id if body.seed is None else f"seed {body.seed}",
        candidates=ItemsAsked(ids=candidates, attributes=body.attributes, vectors=body.vectors),
        length=length if body.length is None else body.length,
        shown=shown,
        rules=tuple(body.rules),
        slots=tuple(body.slots),
        consumed=body.consumed,
        mode=None if body.mode is None else Mode(body.mode),
        unrestricted=body.unrestricted,
        allow_short=body.allow_short,
        # Never the seed: one that all requests share would draw all lists alike.
        explore=f"{tenant}\0{body.user}\0{request_id}" if body.allow_explore else "",
    )
