"""`relaygr serve`: the HTTP service in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from relaygr.config.load import load_config


def serve(
    *,
    config: Path | None = None,
    model: Path | None = None,
    port: int | None = None,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> int:
    """Serve ranking over HTTP until SIGTERM or SIGINT; exit status 1 if something was left unfinished.

    Without a model, a small one with random weights is served, and the log says so. Events are kept in
    `relaygr-history.db` of the working folder unless `store.url` says otherwise.

    Parameters
    ----------
    config: Path | None
        TOML file of settings; without one, the defaults.
    model: Path | None
        Folder of the ranker; short for `--set serving.model=`.
    port: int | None
        Where to listen; 0 takes a free port. Short for `--set serving.port=`.
    set: tuple[str, ...]
        Any setting, as `section.key=value`; can be given many times.
    """
    # Here, so that other commands do not load a web server.
    from relaygr.serving.run import run

    short = {"serving.model": model, "serving.port": port}
    named = [f"{key}={value}" for key, value in short.items() if value is not None]
    settings = load_config(config, os.environ, [*named, *set])
    out = Console()
    done = run(settings, lambda url: out.print(f"listening on {url}", soft_wrap=True, highlight=False))
    return 0 if done else 1
