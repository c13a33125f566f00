"""Logs: one JSON object a line on standard error, with the id of the request and of its trace.

From level info up they name no user and no item, unless that is asked for: values of such fields are left
out, and so are the messages of errors that may quote them.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, TextIO

import msgspec
import structlog

Level = Literal["debug", "info", "warning", "error"]
Event = MutableMapping[str, Any]

PERSONAL = frozenset(
    (
        "user",
        "users",
        "items",
        "timestamps",
        "actions",
        "candidates",
        "history",
        "contextual",
        "key",
        "message",
    )
)
HIDDEN = "hidden"
# Polled by machines and pages: only worth a line when somebody looks for them.
_POLLED = frozenset(
    (
        "/",
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/status",
        "/v1/relay/feedback",
        "/v2/health/live",
        "/v2/health/ready",
    )
)
# Faults of the machine, whose messages say what happened and quote no request.
_IMPERSONAL = (OSError, RuntimeError, MemoryError, ImportError)
_FRAMES_MAX, _CAUSES_MAX = 30, 5

requests: Any = structlog.stdlib.get_logger("relaygr.request")


def configure(level: Level = "info", personal: bool = False, stream: TextIO | None = None) -> None:
    """Write the logs of the whole process to `stream`, standard error by default.

    uvicorn's lines are among them, without its access log: `answered` takes its place. Start uvicorn with
    `log_config=None`. May be called again.

    Args:
        personal: users, items and messages of errors too.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _Privacy(personal),
    ]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.propagate = False
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


@contextmanager
def bound(**fields: str) -> Iterator[None]:
    """Within, every line of this task has these fields; empty ones are left out."""
    with structlog.contextvars.bound_contextvars(**{name: value for name, value in fields.items() if value}):
        yield


def answered(
    method: str, route: str, status: int, seconds: float, *, error: str = "", **fields: str | float
) -> None:
    """The line of a request: a warning where the service is at fault, debug where it is only polled.

    Args:
        route: the pattern of the path; the path itself may name a user.
        error: the code of the error that was answered.
        fields: further ones, such as the tenant and the milliseconds of the stages.
    """
    name = "warning" if status >= 500 else "debug" if route in _POLLED else "info"
    # Asked first, because most of the cost is in making the line.
    if not logging.getLogger("relaygr.request").isEnabledFor(getattr(logging, name.upper())):
        return
    if error:
        fields["error"] = error
    getattr(requests, name)(
        "request", method=method, route=route, status=status, ms=round(seconds * 1000, 3), **fields
    )


class _Privacy:
    """Leaves out what names users and items, and turns exceptions into fields."""

    def __init__(self, personal: bool) -> None:
        self._personal = personal

    def __call__(self, logger: Any, method: str, event: Event) -> Event:
        personal = self._personal or event.get("level") == "debug"
        if not personal:
            for name in PERSONAL & event.keys():
                event[name] = HIDDEN
        error = _error_of(event.pop("exc_info", None))
        if error is not None:
            event["exception"] = _described(error, personal)
        return event


def _error_of(info: Any) -> BaseException | None:
    if isinstance(info, BaseException):
        return info
    if isinstance(info, tuple):
        return info[1] if isinstance(info[1], BaseException) else None
    return sys.exc_info()[1] if info else None


def _described(error: BaseException, personal: bool) -> list[dict[str, Any]]:
    """The error and its causes, newest first: type, places, and the message where it may be shown."""
    found: list[dict[str, Any]] = []
    current: BaseException | None = error
    while current is not None and len(found) < _CAUSES_MAX:
        one: dict[str, Any] = {"type": type(current).__name__, "at": _places(current.__traceback__)}
        if personal or isinstance(current, _IMPERSONAL):
            one["message"] = str(current)
        found.append(one)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return found


def _places(trace: TracebackType | None) -> list[str]:
    """`file:line function`, outermost first; the innermost ones if there are many."""
    places: list[str] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return places[-_FRAMES_MAX:]


def _render(logger: Any, method: str, event: Event) -> str:
    """One line, the usual fields first; values that JSON has no form for as text."""
    first = ("timestamp", "level", "logger", "event")
    ordered = {name: event.pop(name) for name in first if name in event}
    ordered.update(event)
    try:
        return msgspec.json.encode(ordered, enc_hook=str).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only escapes can say
        return json.dumps(ordered, default=str)
