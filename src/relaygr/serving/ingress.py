"""The gateway as the front of a cluster: also the pages that are of one instance, or of all together."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from importlib import resources
from urllib.parse import parse_qs

from multidict import CIMultiDict
from prometheus_client import generate_latest
from starlette.datastructures import Headers
from starlette.types import Scope

from relaygr.config.settings import Config
from relaygr.core.errors import NotReadyError
from relaygr.serving.crew import Crew
from relaygr.serving.errors import HttpError
from relaygr.serving.exchange import Reply
from relaygr.serving.exposition import LABEL, merged
from relaygr.serving.gateway import Gateway
from relaygr.serving.laps import OWNER
from relaygr.serving.links import Answer, AwayError, Letter

_METRICS = Letter("GET", "/metrics", CIMultiDict(accept="text/plain"), b"")
_STATUS = Letter("GET", "/v1/status", CIMultiDict(), b"")
_PAGES_S = 5.0
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_HTML = b"text/html; charset=utf-8"


class Ingress(Gateway):
    """An ASGI application in front of a crew; `name` is this process's own in the metrics."""

    def __init__(self, config: Config, crew: Crew, name: str) -> None:
        super().__init__(config, crew)
        self._name = name

    async def own(self, scope: Scope, headers: Headers) -> Reply | None:
        if scope["method"] in ("GET", "HEAD"):
            if scope["path"] == "/":
                page = resources.files("relaygr.serving") / "page" / "index.html"
                return Reply(page.read_bytes(), content_type=_HTML)
            if scope["path"] == "/metrics":
                return Reply((await self._metrics()).encode(), content_type=_TEXT)
            if scope["path"] == "/v1/status":
                return await self._status(scope)
        return await super().own(scope, headers)

    async def _metrics(self) -> str:
        """Of every replica that answers, and of this process."""
        names = [one.member.id for one in self.fleet.router.members if one.serves]
        answers = await asyncio.gather(*(self._page(name, _METRICS) for name in names))
        pages = {
            name: answer.body.decode()
            for name, answer in zip(names, answers, strict=True)
            if answer is not None and answer.status == HTTPStatus.OK
        }
        return merged({self._name: generate_latest(self.registry).decode(), **pages})

    async def _status(self, scope: Scope) -> Reply:
        """Of one replica: the one that the query names, else the first."""
        members = self.fleet.router.members
        serving = sorted(one.member.id for one in members if one.serves)
        wanted = parse_qs(scope["query_string"].decode("latin-1")).get(LABEL, serving)[:1]
        if not wanted:
            raise NotReadyError("no instance is ready")
        if wanted[0] not in serving:
            shown = f"{LABEL} {wanted[0][:64]!r} does not serve; see /v1/members"
            raise HttpError(HTTPStatus.NOT_FOUND, "not_found", shown, field=LABEL)
        answer = await self._page(wanted[0], _STATUS)
        if answer is None:
            raise NotReadyError(f"{wanted[0]} did not answer")
        return Reply(answer.body, answer.status, headers=[(OWNER.encode(), wanted[0].encode())])

    async def _page(self, name: str, asked: Letter) -> Answer | None:
        """None where there is no answer."""
        try:
            return await self.fleet.links.send(name, self.fleet.url(name), asked, timeout_s=_PAGES_S)
        except AwayError:
            return None
