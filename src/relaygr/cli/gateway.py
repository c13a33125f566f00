"""`relaygr gateway`: the router alone, in front of instances."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import replace
from rich.console import Console

from relaygr.config.load import load_config
from relaygr.config.relay import Member
from relaygr.core.errors import ConfigError


def gateway(
    *,
    config: Path | None = None,
    member: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    port: int | None = None,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> int:
    """Route requests to instances until SIGTERM or SIGINT, every user to one of them.

    Exit status 1 if something was left unfinished. It computes nothing itself and needs little memory.

    Parameters
    ----------
    config: Path | None
        TOML file of settings, with the members in `[[router.members]]`; without one, the defaults.
    member: tuple[str, ...]
        An instance, as `ID=URL`; can be given many times, and then replaces the members of the file.
    port: int | None
        Where to listen; 0 takes a free port. Short for `--set serving.port=`.
    set: tuple[str, ...]
        Any setting, as `section.key=value`; can be given many times.
    """
    from relaygr.serving.gateway import run

    named = [f"serving.port={port}"] if port is not None else []
    settings = load_config(config, os.environ, [*named, *set])
    if member:
        members = tuple(parse_member(text) for text in member)
        settings = replace(settings, router=replace(settings.router, members=members))
    out = Console()
    done = run(settings, lambda url: out.print(f"listening on {url}", soft_wrap=True, highlight=False))
    return 0 if done else 1


def parse_member(text: str) -> Member:
    """An instance from `ID=URL`; ConfigError for another form."""
    name, equals, url = text.partition("=")
    if not equals:
        raise ConfigError("--member", f"{text!r} must have the form ID=URL")
    return Member(id=name.strip(), url=url.strip())
