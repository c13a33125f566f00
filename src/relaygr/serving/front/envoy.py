"""The configuration of Envoy in front of instances, from the settings of the instances."""

from __future__ import annotations

import json
import shlex
import string
from collections.abc import Sequence
from importlib import resources
from urllib.parse import urlsplit

from relaygr.config.limits import Range
from relaygr.config.relay import Member
from relaygr.config.settings import Config
from relaygr.core.errors import ConfigError

BUDGET_MS = 300.0
ADMIN_PORT = 9901
# Envoy's weights are whole numbers.
_WEIGHT_UNITS = 100
_WEIGHT_MAX = 100_000
# An instance that answers at its deadline is not cut off.
_PATIENCE_S = 5.0
_PORT = Range(1, 65535)


def render(config: Config, *, budget_ms: float = BUDGET_MS, admin_port: int = ADMIN_PORT) -> str:
    """YAML for Envoy, valid as it is.

    Args:
        config: `serving.host` and `serving.port` are where Envoy listens; `router.members` the instances;
            body limit, deadlines, kept connections and requests at once are those of an instance.
        budget_ms: longest time of a ranking, a prefix signal or a slate with both tries.
        admin_port: on the loopback interface.

    Raises:
        ConfigError: no members, one that Envoy cannot be told, or a number out of range.
    """
    members, serving = config.router.members, config.serving
    if not members:
        raise ConfigError("router.members", "is empty; there is nobody to send requests to")
    Range(1, 3_600_000).check("--budget-ms", budget_ms)
    _PORT.check("--admin-port", admin_port)
    _PORT.check("serving.port", serving.port)
    timeout_s = config.scheduler.deadline_max_ms / 1000 + _PATIENCE_S
    template = (resources.files("relaygr.serving.front") / "envoy.yaml").read_text("utf-8")
    return string.Template(template).substitute(
        command=_command(config, members, budget_ms, admin_port),
        members="\n".join(_endpoint(member, place) for place, member in enumerate(members)),
        listen=json.dumps(serving.host),
        port=serving.port,
        admin_port=admin_port,
        body_bytes=serving.body_limit_bytes,
        body_s=_seconds(serving.body_timeout_s),
        budget_s=_seconds(budget_ms / 1000),
        try_s=_seconds(budget_ms / 2000),
        timeout_s=_seconds(timeout_s),
        stream_s=_seconds(serving.body_timeout_s + timeout_s),
        connect_s=_seconds(config.router.connect_ms / 1000),
        idle_s=_seconds(serving.keep_alive_s * 0.8),
        requests_max=min(serving.requests_max * len(members), (1 << 32) - 1),
    )


def _command(config: Config, members: Sequence[Member], budget_ms: float, admin_port: int) -> str:
    """On one line, so that it stays a comment: ids and URLs hold no line breaks."""
    words = ["relaygr", "deploy", "envoy"]
    for one in members:
        words += ["--member", f"{one.id}={one.url}"]
    words += ["--listen", config.serving.host, "--port", str(config.serving.port)]
    words += ["--admin-port", str(admin_port), "--budget-ms", f"{budget_ms:g}"]
    return shlex.join(words)


def _endpoint(member: Member, place: int) -> str:
    path = f"router.members[{place}].url"
    url = urlsplit(member.url)
    if url.scheme != "http":
        raise ConfigError(path, f"{member.url!r} must begin with http://: instances speak no TLS")
    if url.hostname is None or url.username is not None:
        raise ConfigError(path, f"{member.url!r} must be http://HOST:PORT")
    try:
        port = url.port or 80
    except ValueError as error:
        raise ConfigError(path, f"{member.url!r}: {error}") from error
    address = {"socket_address": {"address": url.hostname, "port_value": port}}
    weight = max(1, round(member.weight * _WEIGHT_UNITS))
    if weight > _WEIGHT_MAX:
        limit = _WEIGHT_MAX // _WEIGHT_UNITS
        raise ConfigError(f"router.members[{place}].weight", f"{member.weight:g} must be at most {limit}")
    told = {
        "endpoint": {"address": address, "hostname": url.hostname},
        "load_balancing_weight": weight,
        "metadata": {"filter_metadata": {"envoy.lb": {"hash_key": member.id}}},
    }
    return f"              - {json.dumps(told)}"


def _seconds(value: float) -> str:
    return f"{round(value, 6):.6f}".rstrip("0").rstrip(".") + "s"
