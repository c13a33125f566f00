"""Which model the rankers of a cluster serve: Serve does not tell, so each is asked through the front."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from urllib.parse import urlsplit

import httpx
import msgspec

from relaygr.serving.front.ray import APPLICATION, RANKERS
from relaygr.serving.front.ray_api import Details, details
from relaygr.serving.snapshot import folder_digest

_TIMEOUT = httpx.Timeout(10.0, connect=3.0)
_LOOK_S = 0.5
# Replicas have their model when Serve calls them running; the ingress hears of them a moment later.
_SETTLE_S = 10.0
_PROXIES_ASKED = 4
_ANYWHERE = ("0.0.0.0", "::", "")


class _Model(msgspec.Struct, frozen=True):
    folder: str = ""


class _Status(msgspec.Struct, frozen=True):
    model: _Model | None = None


def deployed_model(address: str) -> str | None:
    """The path that the cluster was last told to serve; None if it serves none of ours.

    Raises:
        ConfigError: as `details`.
    """
    found = details(address).applications.get(APPLICATION)
    if found is None or found.deployed_app_config is None:
        return None
    for one in found.deployed_app_config.get("deployments", ()):
        if one.get("name") == RANKERS:
            return str((one.get("user_config") or {}).get("model", ""))
    return None


def serves(
    address: str,
    model: str,
    before: str | None,
    say: Callable[[str], None],
    front: str | None = None,
    settle_s: float | None = None,
) -> bool:
    """Whether every ranker that runs serves the model at the path `model`.

    Args:
        address: URL of the dashboard.
        before: what was to be served until now.
        say: is told what is wrong.
        front: URL of Serve's proxy; None takes what the cluster says.

    Raises:
        ConfigError: as `details`.
    """
    settle_s = _SETTLE_S if settle_s is None else settle_s
    end, wanted = time.monotonic() + settle_s, folder_digest(model)
    while True:
        found = details(address)
        names = _running(found)
        urls = [front.rstrip("/")] if front is not None else _fronts(address, found)
        shown = {name: _folder(urls, name) for name in names}
        if names and all(folder == wanted for folder in shown.values()):
            return True
        if time.monotonic() > end:
            _explain(shown, wanted, model, before, urls, say)
            return False
        time.sleep(_LOOK_S)


def _explain(
    shown: dict[str, str | None],
    wanted: str,
    model: str,
    before: str | None,
    urls: list[str],
    say: Callable[[str], None],
) -> None:
    silent = sum(folder is None for folder in shown.values())
    wrong = sum(folder not in (None, wanted) for folder in shown.values())
    if wrong:
        say(
            f"{wrong} of {len(shown)} rankers do not serve the model {model!r}: they go on with the one they "
            "had, and their logs say why. Those that Ray starts from now on are to load the new one, and may "
            "not start"
        )
        if before and before != model:
            say(f"to go back, deploy again with --model {before}")
    if silent or not shown:
        say(
            f"it runs, but {silent} of {len(shown)} rankers did not say which model they serve, asked at "
            f"{', '.join(urls) or 'no proxy'}: name Serve's proxy with --front URL, or ask nobody with "
            "--front none"
        )


def _running(found: Details) -> list[str]:
    ours = found.applications.get(APPLICATION)
    rankers = None if ours is None else ours.deployments.get(RANKERS)
    return [] if rankers is None else [one.replica_id for one in rankers.replicas if one.state == "RUNNING"]


def _fronts(address: str, found: Details) -> list[str]:
    """Where Serve's proxies may be reached from here."""
    options = found.http_options or {}
    host, port = str(options.get("host", "")), options.get("port", 8000)
    root = str(options.get("root_path") or "").rstrip("/")
    hosts = [host]
    if host in _ANYWHERE:
        nodes = [one.node_ip for one in (found.proxies or {}).values() if one.node_ip]
        hosts = [*nodes[:_PROXIES_ASKED], urlsplit(address).hostname or ""]
    shown = [f"[{one}]" if ":" in one else one for one in dict.fromkeys(hosts) if one]
    return [f"http://{one}:{port}{root}" for one in shown]


def _folder(urls: Iterable[str], name: str) -> str | None:
    """What the ranker says that it was loaded from; None if it was not reached."""
    for url in urls:
        try:
            answer = httpx.get(f"{url}/v1/status", params={"replica": name}, timeout=_TIMEOUT)
            if answer.status_code == HTTPStatus.OK:
                status = msgspec.json.decode(answer.content, type=_Status)
                return "" if status.model is None else status.model.folder
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError):
            continue
    return None
