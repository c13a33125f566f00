"""What a router tells an instance with a request: other instances may have written to their store."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers

from relaygr.serving.laps import EPOCH, MOVED
from relaygr.serving.service import Service


def heed(service: Service, headers: Headers, tenant: str, users: Iterable[str]) -> None:
    """The store is asked again: for these users if they were elsewhere, for all after a change of members."""
    epoch = headers.get(EPOCH, "")
    if epoch.isdecimal() and len(epoch) < 19:
        service.note_epoch(int(epoch))
    if MOVED in headers:
        for user in users:
            service.note_moved(tenant, user)
