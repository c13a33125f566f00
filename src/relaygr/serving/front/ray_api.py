"""Ray Serve's HTTP API on a cluster's dashboard: a configuration goes in, and what became of it comes out."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httpx
import msgspec

from relaygr.core.errors import ConfigError

_PATH = "/api/serve/applications/"
_TIMEOUT_S = 60.0
_LOOK_S = 0.5
_SHOWN_CHARACTERS = 2000


class Replica(msgspec.Struct, frozen=True):
    """One process of a deployment."""

    replica_id: str
    state: str
    pid: int | None = None


class Deployment(msgspec.Struct, frozen=True):
    status: str
    message: str = ""
    target_num_replicas: int = 0
    replicas: list[Replica] = []


class Application(msgspec.Struct, frozen=True):
    status: str
    message: str = ""
    deployments: dict[str, Deployment] = {}


class Details(msgspec.Struct, frozen=True):
    """What Serve says of everything that it runs."""

    applications: dict[str, Application] = {}


def put(address: str, wanted: dict[str, Any], wait_s: float, say: Callable[[str], None]) -> bool:
    """Let the cluster serve `wanted` in place of all that it serves; whether it does within `wait_s`.

    Args:
        address: URL of the dashboard.
        say: is told what is waited for, and what went wrong.

    Raises:
        ConfigError: nothing answers there, or it does not take the configuration.
    """
    _answer("PUT", address, wanted)
    names = [one["name"] for one in wanted["applications"]]
    end, told = time.monotonic() + wait_s, ""
    while True:
        found = details(address).applications
        states = {name: found[name].status if name in found else "NOT_STARTED" for name in names}
        if all(state == "RUNNING" for state in states.values()):
            return True
        shown = ", ".join(f"{name}: {state}" for name, state in states.items())
        if shown != told:
            say(told := shown)
        failed = "DEPLOY_FAILED" in states.values()
        if failed or time.monotonic() > end:
            for name in names:
                _explain(found.get(name), say)
            if not failed:
                say(f"not running after --wait-s {wait_s:g} s")
            return False
        time.sleep(_LOOK_S)


def details(address: str) -> Details:
    """ConfigError if nothing answers at the address, or something else than Ray."""
    try:
        return msgspec.json.decode(_answer("GET", address), type=Details)
    except msgspec.MsgspecError as error:
        raise ConfigError("--address", f"{address}: what answers there is not Ray: {error}") from error


def _explain(found: Application | None, say: Callable[[str], None]) -> None:
    if found is None:
        return
    say(found.message[-_SHOWN_CHARACTERS:])
    for name, one in found.deployments.items():
        if one.status != "HEALTHY":
            say(f"{name}: {one.status} {one.message[-_SHOWN_CHARACTERS:]}")


def _answer(method: str, address: str, body: Any = None) -> bytes:
    try:
        answer = httpx.request(method, address.rstrip("/") + _PATH, json=body, timeout=_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        hint = "start a cluster with `ray start --head`, or give --address local"
        raise ConfigError("--address", f"no Ray dashboard at {address!r}: {error}; {hint}") from error
    if answer.status_code != HTTPStatus.OK:
        said = answer.text[-_SHOWN_CHARACTERS:]
        raise ConfigError("--address", f"{address} refused it with {answer.status_code}: {said}")
    return answer.content
