"""The configuration of Envoy in front of instances, from the settings of the instances."""

from __future__ import annotations

import ipaddress
import json
import re
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
# One try at what reads or writes the store and computes nothing; at a deletion, for which an instance may
# have to find out first that one of its peers hangs; and over the deadline of a generation that names none.
_STORED_TRY_S = 5.0
_DELETE_TRY_S = 10.0
_GENERATE_MORE_S = 1.0
_TRIES = 2
_PORT = Range(1, 65535)
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?\.?")


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
    if not _is_ip(serving.host):
        raise ConfigError("--listen", f"{serving.host!r} must be an IP address, such as 0.0.0.0 or ::")
    if admin_port == serving.port:
        raise ConfigError("--admin-port", f"{admin_port} must be another port than --port, {serving.port}")
    generate_s = config.generator.deadline_ms / 1000 + _GENERATE_MORE_S
    longest_s = max(config.scheduler.deadline_max_ms / 1000, _TRIES * generate_s)
    timeout_s = longest_s + _PATIENCE_S
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
        stored_s=_seconds(_TRIES * _STORED_TRY_S),
        stored_try_s=_seconds(_STORED_TRY_S),
        delete_s=_seconds(_TRIES * _DELETE_TRY_S),
        delete_try_s=_seconds(_DELETE_TRY_S),
        generate_s=_seconds(_TRIES * generate_s),
        generate_try_s=_seconds(generate_s),
        timeout_s=_seconds(timeout_s),
        stream_s=_seconds(serving.body_timeout_s + timeout_s),
        connect_s=_seconds(config.router.connect_ms / 1000),
        idle_s=_seconds(serving.keep_alive_s * 0.8),
        requests_max=min(serving.requests_max * len(members), (1 << 32) - 1),
    )


def _command(config: Config, members: Sequence[Member], budget_ms: float, admin_port: int) -> str:
    """On one line, so that it stays a comment: ids, URLs and addresses hold no line breaks."""
    words = ["relaygr", "deploy", "envoy"]
    for one in members:
        words += ["--member", f"{one.id}={one.url}"]
    words += ["--listen", config.serving.host, "--port", str(config.serving.port)]
    words += ["--admin-port", str(admin_port), "--budget-ms", f"{budget_ms:g}"]
    return shlex.join(words)


def _endpoint(member: Member, place: int) -> str:
    path = f"router.members[{place}].url"
    try:
        url = urlsplit(member.url)
        port = 80 if url.port is None else url.port
    except ValueError as error:
        raise ConfigError(path, f"{member.url!r}: {error}") from error
    if url.scheme != "http":
        raise ConfigError(path, f"{member.url!r} must begin with http://: instances speak no TLS")
    known = url.hostname is not None and (_is_ip(url.hostname) or _NAME.fullmatch(url.hostname) is not None)
    if not known or url.username is not None or not _PORT.accepts(port):
        raise ConfigError(
            path,
            f"{member.url!r} must be http://HOST:PORT, HOST an IP address or a name of ASCII letters, digits "
            "and -_. and PORT from 1 to 65535",
        )
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


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    # A zone of IPv6, which may hold anything.
    return "%" not in text


def _seconds(value: float) -> str:
    return f"{round(value, 6):.6f}".rstrip("0").rstrip(".") + "s"
