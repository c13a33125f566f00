"""The configuration of Ray Serve, and of KubeRay around it, from the settings of instances; needs no Ray."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from relaygr.config.load import load_config
from relaygr.config.settings import Config
from relaygr.core.errors import ConfigError
from relaygr.core.units import GIB, MIB

RAY_VERSION = "2.55.1"
APPLICATION = "relaygr"
RANKERS, INGRESS = "Ranker", "Ingress"
IMPORT_PATH = "relaygr.serving.raycluster:application"
# What an unbounded drain of the two laps takes where budgets follow the machine, as in `fleet`.
_T_LIFE_S = 10.0
# Polls and pages, which are not among `serving.requests_max`.
_SPARE_REQUESTS = 32
_LAST_RESORT_S = 5.0
# Of a ranker of a small model and of Ray's own processes beside it, without the pools.
_PROCESS_BYTES = 3072 * MIB


def serve_config(config: Config) -> dict[str, Any]:
    """What `serve deploy` reads, as values for YAML or JSON.

    Raises:
        ConfigError: a setting makes no sense for replicas that Ray places.
    """
    _check(config)
    ray, serving = config.ray, config.serving
    wait_s = drain_s(config)
    end_s = wait_s + serving.drain_delay_s + serving.drain_s + _LAST_RESORT_S
    rankers: dict[str, Any] = {
        "name": RANKERS,
        "user_config": {"model": serving.model},
        "max_ongoing_requests": ray.ongoing_max or serving.requests_max + _SPARE_REQUESTS,
        "graceful_shutdown_wait_loop_s": wait_s,
        "graceful_shutdown_timeout_s": end_s,
        "health_check_period_s": 2.0,
        "health_check_timeout_s": 10.0,
        "ray_actor_options": {"num_cpus": ray.ranker_cpus},
    }
    if ray.replicas_max:
        rankers["autoscaling_config"] = {
            "min_replicas": ray.replicas,
            "initial_replicas": ray.replicas,
            "max_replicas": ray.replicas_max,
            "target_ongoing_requests": ray.target_ongoing,
            "upscale_delay_s": ray.upscale_delay_s,
            "downscale_delay_s": ray.downscale_delay_s,
        }
    else:
        rankers["num_replicas"] = ray.replicas
    ingress = {
        "name": INGRESS,
        "num_replicas": ray.ingresses,
        "user_config": {},
        "max_ongoing_requests": serving.requests_max + _SPARE_REQUESTS,
        "graceful_shutdown_wait_loop_s": max(serving.drain_delay_s, 1.0),
        "graceful_shutdown_timeout_s": max(serving.drain_delay_s, 1.0) + serving.drain_s + _LAST_RESORT_S,
        "ray_actor_options": {"num_cpus": ray.ingress_cpus},
    }
    return {
        "proxy_location": "EveryNode",
        "http_options": {
            "host": serving.host,
            "port": serving.port,
            "request_timeout_s": config.scheduler.deadline_max_ms / 1000 + 20.0,
            "keep_alive_timeout_s": serving.keep_alive_s,
        },
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": {"settings": sent_along(config)},
                "deployments": [ingress, rankers],
            }
        ],
    }


def drain_s(config: Config) -> float:
    """How long a replica that stops, or changes its model, still ranks for its users."""
    for budget in (config.budgets.drain_ms, config.budgets.t_life_ms):
        if not isinstance(budget, str) and budget:
            return budget / 1000
    return _T_LIFE_S


def cpus(config: Config) -> float:
    """What Ray has to have for all of it to be placed; Serve's controller and proxy take none."""
    ray = config.ray
    return ray.ingresses * ray.ingress_cpus + max(ray.replicas, ray.replicas_max) * ray.ranker_cpus + 1


def sent_along(config: Config) -> dict[str, Any]:
    """The settings that differ from the defaults, without those that Serve knows by itself."""
    plain: dict[str, dict[str, Any]] = msgspec.to_builtins(config)
    usual: dict[str, dict[str, Any]] = msgspec.to_builtins(Config())
    plain["serving"]["model"] = ""
    for name in ("host", "port"):
        plain["serving"][name] = usual["serving"][name]
    # Of all that is in it, replicas themselves need only how long a call may take to be accepted.
    plain["ray"] = {**usual["ray"], "take_ms": plain["ray"]["take_ms"]}
    del plain["train"], plain["train_generator"]
    changed = {
        section: {name: value for name, value in values.items() if value != usual[section][name]}
        for section, values in plain.items()
    }
    return {section: values for section, values in changed.items() if values}


def settings_of(sent: Mapping[str, Any], environ: Mapping[str, str]) -> Config:
    """What `sent_along` wrote, and over it the variables of this machine; ConfigError as for a file."""
    return load_config(tables=sent, environ=environ)


def as_yaml(config: Config) -> str:
    """The Serve configuration, `without_password`; JSON is YAML."""
    head = "# For `serve deploy FILE`, which deletes applications that other configurations have deployed.\n"
    written = without_password(config)
    if written != config:
        head += "# store.url is without its password: set RELAYGR_STORE__URL on the cluster's machines.\n"
    return head + json.dumps(serve_config(written), indent=2) + "\n"


def without_password(config: Config) -> Config:
    """For a file that others read; a variable of the machines brings `store.url` as a whole."""
    url = urlsplit(config.store.url)
    user, at, host = url.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    if not colon:
        return config
    place = url._replace(netloc=f"{name}{at if name else ''}{host}").geturl()
    return replace(config, store=replace(config.store, url=place))


def kuberay(config: Config, image: str) -> str:
    """A RayService for KubeRay with this configuration, `without_password`: a worker for each ranker."""
    text = (resources.files("relaygr.serving.front") / "rayservice.yaml").read_text("utf-8")
    wanted, ray = serve_config(without_password(config)), config.ray
    deployments = wanted["applications"][0]["deployments"]
    told = json.dumps(wanted, indent=2)
    # The ingress is placed on one of them, too.
    cpus_each = math.ceil(max(ray.ranker_cpus + ray.ingress_cpus * ray.ingresses / ray.replicas, 1))
    memory = config.engine.device_bytes + config.host.host_bytes + _PROCESS_BYTES
    return Template(text).substitute(
        serve_config="\n".join(f"    {line}" for line in told.splitlines()),
        ray_version=RAY_VERSION,
        image=json.dumps(image),
        port=config.serving.port,
        workers=ray.replicas,
        workers_max=ray.replicas_max or ray.replicas,
        worker_cpus=cpus_each,
        worker_memory=f"{math.ceil(memory / GIB)}Gi",
        grace_s=math.ceil(max(one["graceful_shutdown_timeout_s"] for one in deployments)) + 10,
    )


def _check(config: Config) -> None:
    """What may be right for one server, and is not for replicas."""
    scheme = config.store.url.partition("://")[0]
    if config.store.url != "sqlite://memory" and scheme not in ("redis", "rediss"):
        raise ConfigError(
            "store.url",
            f"{config.store.url!r} is of one machine, and replicas are placed on any: use "
            "redis://HOST:PORT/DB, or sqlite://memory where every request brings its history",
        )
    if config.router.members:
        count = len(config.router.members)
        raise ConfigError("router.members", f"has {count} members, must be empty: Ray says who they are")
    if config.stream.url:
        raise ConfigError(
            "stream.url", "is not read by replicas on Ray: let a `relaygr gateway` or a client send events"
        )
    for path, value in (
        ("serving.calibration", config.serving.calibration),
        ("host.disk_path", config.host.disk_path),
        ("host.snapshot_path", config.host.snapshot_path),
    ):
        if value:
            raise ConfigError(path, f"{value!r} must be empty: replicas on one machine would share it")
    if config.serving.port == 0:
        raise ConfigError(
            "serving.port", "0 must be a port: Serve's proxies listen on the same one everywhere"
        )
