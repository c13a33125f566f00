"""The `relaygr` command: one sub-command a file, errors on standard error with exit status 2."""

from __future__ import annotations

import errno
import os
import sys

from cyclopts import App
from rich.console import Console

from relaygr import __version__
from relaygr.core.errors import ConfigError, RelayError

app = App(
    name="relaygr",
    help="Rank long user histories inside a latency budget.",
    version=__version__,
)
# Each is imported when it is called: most load torch, which takes seconds, and a gateway has no use for it.
_COMMANDS = {
    "data": "data:data_app",
    "bench": "bench:bench_app",
    "doctor": "doctor:doctor",
    "calibrate": "calibrate:calibrate_command",
    "plan": "plan:plan_app",
    "train": "train:train_app",
    "simulate": "simulate:simulate_app",
    "cache": "cache:cache_app",
    "catalogue": "catalogue:catalogue_app",
    "import": "importing:import_app",
    "sids": "sids:sids_app",
    "eval": "evaluate:eval_app",
    "verify": "verify:verify_command",
    "demo": "demo:demo",
    "serve": "serve:serve",
    "gateway": "gateway:gateway",
    "deploy": "deploy:deploy_app",
}
for _name, _place in _COMMANDS.items():
    app.command(f"relaygr.cli.{_place}", name=_name)


def main(argv: list[str] | None = None) -> None:
    """Run one command; a known error, or a path that fails, prints one line and exits with 2."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        _check_unicode(arguments)
        if not arguments or arguments[0] in ("--help", "-h"):
            # What they do is written in them.
            for name in _COMMANDS:
                app[name]
        result = app(arguments)
    except RelayError as error:
        _complain(str(error))
        raise SystemExit(2) from error
    except OSError as error:
        # A path that the command did not expect to fail, or an output that takes no more.
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        _complain(f"{error.filename or 'output'}: {error.strerror}")
        raise SystemExit(2) from error
    if isinstance(result, int) and result:
        raise SystemExit(result)


def _check_unicode(arguments: list[str]) -> None:
    """Bytes that are not UTF-8 could be read as a path, but not be written to a dataset or a report."""
    for number, argument in enumerate(arguments, start=1):
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(f"argument {number}", f"{os.fsencode(argument)!r} is not UTF-8") from error


def _complain(message: str) -> None:
    Console(stderr=True).print(f"relaygr: {message}", style="bold red", markup=False, soft_wrap=True)
