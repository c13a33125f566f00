"""A request as it comes to a router: its body within limits, its user, and what is sent on of it."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from relaygr.config.settings import Config
from relaygr.core.errors import RelayError
from relaygr.relay.route import Lap
from relaygr.serving.auth import Gatekeeper
from relaygr.serving.exchange import read_body
from relaygr.serving.forward import Errand
from relaygr.serving.laps import EPOCH, HOP, MOVED, OWNER, SESSION, Keys, Kind
from relaygr.serving.links import letter

# Over the longest deadline, for an instance that answers late that it was late.
_PATIENCE_S = 10.0
# Set anew for every member, or not at all: what a client says of them counts only here.
_OURS = (OWNER, EPOCH, MOVED)


class Intake:
    """Turns requests into errands; one for a process."""

    def __init__(self, config: Config, gatekeeper: Gatekeeper) -> None:
        self._settings, self._gatekeeper, self._keys = config.serving, gatekeeper, Keys(gatekeeper)
        self._timeout_s = config.scheduler.deadline_max_ms / 1000 + _PATIENCE_S

    def tenant(self, headers: Headers) -> str:
        """Who sent these headers; empty for somebody whom an instance is to refuse."""
        try:
            return self._gatekeeper.caller(headers).tenant
        except RelayError:
            return ""

    async def body(self, headers: Headers, receive: Receive) -> bytes:
        """HttpError for a body that is too large, too slow, or cut short."""
        return await read_body(
            headers, receive, self._settings.body_limit_bytes, self._settings.body_timeout_s
        )

    def errand(self, scope: Scope, headers: Headers, kind: Kind, request_id: str, body: bytes) -> Errand:
        """HttpError for headers that cannot be sent on."""
        whose = None if kind.lap is None else self._keys.find(kind, headers, scope["path"], body)
        own = {"x-request-id": request_id, HOP: "1"}
        if whose is not None:
            own[SESSION] = whose.key
        raw_path = scope.get("raw_path") or scope["path"].encode()
        sent = letter(scope["method"], raw_path, scope["query_string"], scope["headers"], body, own, _OURS)
        return Errand(
            sent,
            kind.lap or Lap.OTHER,
            None if whose is None else whose.key,
            headers.get(OWNER) or None,
            kind.repeatable or (whose is not None and whose.repeatable),
            None if kind.lap is None else self._timeout_s,
        )
