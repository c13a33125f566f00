"""From what was sent to what the generator takes: other servers' names of fields, defaults, limits."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from relaygr.config.generator import GeneratorConfig
from relaygr.core.errors import RequestError
from relaygr.generation.errors import TooLongError
from relaygr.generation.normalise import Normalization
from relaygr.generation.requests import ALIASES, GenerateRequest
from relaygr.serving.generation.wire import GenerateBody


def one_value(body: GenerateBody, field: str, default: Any) -> Any:
    """What `field` was given as, under whichever of its names; `default` without it.

    Raises:
        RequestError: it was given under two names.
    """
    names = [field, *(alias for alias, name in ALIASES.items() if name == field)]
    given = [(name, value) for name in names if (value := getattr(body, name)) is not UNSET]
    if len(given) > 1:
        raise RequestError(given[1][0], f"is another name of {given[0][0]}, which is given too")
    return given[0][1] if given else default


def generate_request(
    body: GenerateBody, config: GeneratorConfig, max_history: int, request_id: str
) -> GenerateRequest:
    """The request with the server's defaults in place of what it leaves open.

    Args:
        max_history: most items of a history that comes with a request.

    Raises:
        RequestError: naming the field.
    """
    if body.history is not None and len(body.history) > max_history:
        message = f"{len(body.history)} items, limit {max_history}"
        raise TooLongError(request_id, message, field="history", limit=max_history)
    return GenerateRequest(
        request_id=request_id,
        user=body.user,
        token_ids=body.token_ids,
        history=body.history,
        text=body.text,
        beam_width=one_value(body, "beam_width", config.beam_width),
        num_results=one_value(body, "num_results", None),
        normalization=Normalization(body.normalization or config.normalization),
        max_items=one_value(body, "max_items", config.max_items),
        max_items_per_sid=one_value(body, "max_items_per_sid", config.max_items_per_sid),
        allow=body.allow,
        deny=body.deny or (),
        exclude_seen=body.exclude_seen,
        filters=body.filters or (),
        deadline_ms=body.deadline_ms,
        seed=body.seed,
    )
