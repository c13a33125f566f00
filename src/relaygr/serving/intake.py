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
from relaygr.serving.laps import EPOCH, HOP, MOVED, OWNER, SESSION, Keys, Kind, asked_ms
from relaygr.serving.links import letter

# Over a request's own deadline, and over the longest one: an instance may itself answer that it is late.
_MARGIN_S = 0.1
_PATIENCE_S = 10.0
# Set anew for every member, or not at all: what a client says of them counts only here.
_OURS = (OWNER, EPOCH, MOVED)


class Intake:
    """Turns requests into errands; one for a process."""

    def __init__(self, config: Config, gatekeeper: Gatekeeper) -> None:
        self._settings, self._gatekeeper, self._keys = config.serving, gatekeeper, Keys(gatekeeper)
        self._longest_ms = config.scheduler.deadline_max_ms
        self._generation_ms = config.generator.deadline_max_ms

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
            self._timeout_s(kind, headers, body),
        )

    def _timeout_s(self, kind: Kind, headers: Headers, body: bytes) -> float | None:
        """The request's own deadline; where it names none that an instance takes, the longest there is."""
        if kind.lap is None:
            return None
        longest_ms = self._generation_ms if kind.route == "/v1/generate" else self._longest_ms
        asked = asked_ms(kind, headers, body)
        if asked is not None and 0 < asked <= longest_ms:
            return asked / 1000 + _MARGIN_S
        return longest_ms / 1000 + _PATIENCE_S
