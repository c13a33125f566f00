"""Ray Serve's HTTP API on a cluster's dashboard: a configuration goes in, and what became of it comes out."""

from __future__ import annotations

import threading
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
    """What Serve says of an application.

    Attributes:
        source: `declarative` where a configuration deployed it, `imperative` where code did.
        deployed_app_config: that configuration, as it was sent.
    """

    status: str
    message: str = ""
    deployments: dict[str, Deployment] = {}
    route_prefix: str | None = None
    source: str = ""
    deployed_app_config: dict[str, Any] | None = None


class Proxy(msgspec.Struct, frozen=True):
    """What takes requests on a node."""

    node_ip: str | None = None


class Details(msgspec.Struct, frozen=True):
    """What Serve says of everything that it runs; without `http_options` it does not run yet."""

    applications: dict[str, Application] = {}
    proxies: dict[str, Proxy] | None = None
    proxy_location: str | None = None
    http_options: dict[str, Any] | None = None
    grpc_options: dict[str, Any] | None = None
    target_capacity: float | None = None


def beside(
    wanted: dict[str, Any], found: Details, say: Callable[[str], None], *, replace_others: bool = False
) -> dict[str, Any]:
    """`wanted` as it has to be sent to a cluster that runs `found`, so that nobody else loses anything.

    A configuration replaces all that were sent before, so that other applications are sent again as they
    are. What code has deployed stays by itself.

    Args:
        replace_others: leave them out.

    Raises:
        ConfigError: another application is in the way, or what it was deployed with is not known.
    """
    own = {one["name"]: one for one in wanted["applications"]}
    others = {
        name: one for name, one in found.applications.items() if name not in own and one.status != "DELETING"
    }
    leaving = {name for name, one in others.items() if replace_others and one.source != "imperative"}
    staying = {name: one for name, one in others.items() if name not in leaving}
    routes = {one["route_prefix"]: name for name, one in own.items()}
    for name, one in staying.items():
        if one.route_prefix in routes:
            raise ConfigError(
                "--address",
                f"application {name!r} has the route {one.route_prefix!r} there, which "
                f"{routes[one.route_prefix]!r} needs: give it another one, or delete it",
            )
    kept = [one.deployed_app_config for one in staying.values() if one.deployed_app_config is not None]
    for name, one in staying.items():
        if one.deployed_app_config is None and one.source != "imperative":
            raise ConfigError(
                "--address",
                f"application {name!r} would be deleted: the cluster does not tell what it was deployed "
                "with. Try again once it runs, or give --replace-others",
            )
    for word, names in (("stay", staying), ("are deleted", leaving)):
        if names:
            say(f"other applications that {word}: {', '.join(sorted(names))}")
    sent = {**wanted, "applications": [*kept, *wanted["applications"]]}
    if found.target_capacity is not None:
        sent["target_capacity"] = found.target_capacity
    if found.http_options is not None:
        asked = wanted["http_options"]
        for name, value in asked.items():
            if found.http_options.get(name, value) != value:
                say(f"Serve runs there already: {name} stays {found.http_options[name]!r}, not {value!r}")
        sent["http_options"] = found.http_options
        same = {"proxy_location": found.proxy_location, "grpc_options": found.grpc_options}
        sent |= {name: value for name, value in same.items() if value is not None}
    return sent


def put(
    address: str,
    wanted: dict[str, Any],
    wait_s: float,
    say: Callable[[str], None],
    *,
    replace_others: bool = False,
    stopped: threading.Event | None = None,
) -> bool:
    """Let the cluster serve `wanted` beside what else it serves; whether it does within `wait_s`.

    Args:
        address: URL of the dashboard.
        say: is told what is waited for, and what went wrong.
        replace_others: delete all other applications that a configuration has deployed.
        stopped: ends the wait.

    Raises:
        ConfigError: nothing answers there, it does not take the configuration, or as `beside`.
    """
    _answer("PUT", address, beside(wanted, details(address), say, replace_others=replace_others))
    stopped = stopped or threading.Event()
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
        if stopped.wait(_LOOK_S):
            return False


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
