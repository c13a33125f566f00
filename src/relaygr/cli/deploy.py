"""`relaygr deploy`: configuration for what stands around instances."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from msgspec.structs import replace

from relaygr.cli.deploy_ray import ray
from relaygr.cli.gateway import parse_member
from relaygr.config.load import load_config

deploy_app = App(name="deploy", help="Write configuration for what stands around instances, or deploy them.")
deploy_app.command(ray)


@deploy_app.command
def envoy(
    *,
    config: Path | None = None,
    member: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    listen: str | None = None,
    port: int | None = None,
    admin_port: int = 9901,
    budget_ms: float = 300.0,
    out: Path | None = None,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> int:
    """Write the configuration of Envoy in front of instances, every user at one of them.

    Limits and deadlines follow the settings of the instances.

    Parameters
    ----------
    config: Path | None
        TOML file of settings, with the members in `[[router.members]]`; without one, the defaults.
    member: tuple[str, ...]
        An instance, as `ID=URL`; can be given many times, and then replaces the members of the file.
    listen: str | None
        Address that Envoy listens on. Short for `--set serving.host=`.
    port: int | None
        Its port. Short for `--set serving.port=`.
    admin_port: int
        Of Envoy's own pages, on the loopback interface.
    budget_ms: float
        Longest time of a ranking, a prefix signal or a slate; the first try gets half of it.
    out: Path | None
        File to write; without one, standard output.
    set: tuple[str, ...]
        Any setting, as `section.key=value`; can be given many times.
    """
    # Here, so that other commands do not load it.
    from relaygr.serving.front.envoy import render

    short = {"serving.host": listen, "serving.port": port}
    named = [f"{key}={value}" for key, value in short.items() if value is not None]
    settings = load_config(config, os.environ, [*named, *set])
    if member:
        members = tuple(parse_member(text) for text in member)
        settings = replace(settings, router=replace(settings.router, members=members))
    text = render(settings, budget_ms=budget_ms, admin_port=admin_port)
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
    return 0
