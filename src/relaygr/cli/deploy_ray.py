"""`relaygr deploy ray`: rankers on a Ray cluster."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from relaygr.config.limits import Range
from relaygr.config.load import load_config
from relaygr.core.errors import ConfigError

_ENDS = (signal.SIGTERM, signal.SIGINT)


def ray(
    *,
    config: Path | None = None,
    model: Path | None = None,
    port: int | None = None,
    replicas: int | None = None,
    address: str = "http://127.0.0.1:8265",
    dashboard_port: int = 8265,
    wait_s: float = 300.0,
    front: str | None = None,
    replace_others: Annotated[bool, Parameter(negative="")] = False,
    out: Path | None = None,
    kuberay: Path | None = None,
    image: str = "relaygr-ray:latest",
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> int:
    """Serve on a Ray cluster: an ingress and rankers, every user at one of them.

    Given again, it changes what is different: the model and the number of rankers while they serve, other
    settings by starting rankers anew one after the other. Exit status 1 if the cluster does not get there,
    or if a ranker serves another model in the end. Other applications of the cluster stay.

    Parameters
    ----------
    config: Path | None
        TOML file of settings, read here and sent along; without one, the defaults.
    model: Path | None
        Folder of the ranker, by its path on the cluster's machines. Short for `--set serving.model=`.
    port: int | None
        Where Serve's proxies listen. Short for `--set serving.port=`.
    replicas: int | None
        Rankers. Short for `--set ray.replicas=`.
    address: str
        URL of the cluster's dashboard; `local` starts a cluster here and serves until SIGTERM or SIGINT.
    dashboard_port: int
        Of the cluster that `--address local` starts; 0 takes a free one.
    wait_s: float
        Longest wait until everything runs.
    front: str | None
        URL at which Serve's proxy is reached from here, to ask rankers for their model; without one, what
        the cluster says. `none` asks nobody.
    replace_others: bool
        Delete all other applications that a configuration has deployed there.
    out: Path | None
        Only write the configuration for `serve deploy` to this file, without the password of `store.url`.
    kuberay: Path | None
        Only write a RayService for KubeRay to this file, without that password. Needs a `store.url` that
        all pods reach.
    image: str
        The image in that RayService.
    set: tuple[str, ...]
        Any setting, as `section.key=value`; can be given many times.
    """
    # Here, so that other commands do not load it.
    from relaygr.serving.front import ray as shape
    from relaygr.serving.front.ray_api import put
    from relaygr.serving.front.ray_model import deployed_model, serves

    short = {"serving.model": model, "serving.port": port, "ray.replicas": replicas}
    named = [f"{key}={value}" for key, value in short.items() if value is not None]
    settings = load_config(config, os.environ, [*named, *set])
    Range(1, 86_400).check("--wait-s", wait_s)
    Range(0, 65_535).check("--dashboard-port", dashboard_port)
    console = Console()
    say = functools.partial(console.print, soft_wrap=True, highlight=False, markup=False)
    if out is not None or kuberay is not None:
        if out is not None:
            out.write_text(shape.as_yaml(settings), encoding="utf-8")
        if kuberay is not None:
            kuberay.write_text(shape.kuberay(settings, image), encoding="utf-8")
        if shape.without_password(settings) != settings:
            say("store.url is written without its password: set RELAYGR_STORE__URL on the cluster's machines")
        return 0
    wanted = shape.serve_config(settings)
    if address != "local":
        before = deployed_model(address)
        done = put(address, wanted, wait_s, say, replace_others=replace_others)
        if done and front != "none":
            done = serves(address, settings.serving.model, before, say, front)
        return 0 if done else 1
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "--address", "'local' needs Ray: pip install 'relaygr[ray]'; other addresses do not"
        )
    path = settings.serving.model
    if path and not Path(path).is_dir():
        raise ConfigError("serving.model", f"{path!r} is no folder of this machine")
    from relaygr.serving.raycluster import cluster_here

    with _signals() as stopped, cluster_here(shape.cpus(settings), dashboard_port) as here:
        # Ray has put a handler in place of ours that aborts, and leaves its own processes behind.
        _catch(stopped)
        done = put(here, wanted, wait_s, say, stopped=stopped)
        if done:
            say(f"dashboard at {here}")
            say(f"listening on http://{settings.serving.host}:{settings.serving.port}")
            stopped.wait()
    return 0 if done or stopped.is_set() else 1


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """Set at SIGTERM or SIGINT, which end nothing by themselves meanwhile."""
    stopped = threading.Event()
    before = {number: signal.getsignal(number) for number in _ENDS}
    _catch(stopped)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _catch(stopped: threading.Event) -> None:
    for number in _ENDS:
        signal.signal(number, lambda *_: stopped.set())
