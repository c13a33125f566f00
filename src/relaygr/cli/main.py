"""The `relaygr` command: one sub-command a file, errors on standard error with exit status 2."""

from __future__ import annotations

import errno
import os
import sys

from cyclopts import App
from rich.console import Console

from relaygr import __version__
from relaygr.cli.bench import bench_app
from relaygr.cli.bench_serve import serve as bench_serve
from relaygr.cli.bench_serve import soak as bench_soak
from relaygr.cli.calibrate import calibrate_command
from relaygr.cli.data import data_app
from relaygr.cli.demo import demo
from relaygr.cli.doctor import doctor
from relaygr.cli.evaluate import eval_app
from relaygr.cli.importing import import_app
from relaygr.cli.plan import plan_app
from relaygr.cli.serve import serve
from relaygr.cli.train import train_app
from relaygr.cli.verify import verify_command
from relaygr.core.errors import ConfigError, RelayError

app = App(
    name="relaygr",
    help="Rank long user histories inside a latency budget.",
    version=__version__,
)
app.command(data_app)
bench_app.command(bench_serve)
bench_app.command(bench_soak, name="soak")
app.command(bench_app)
app.command(doctor)
app.command(calibrate_command, name="calibrate")
app.command(plan_app)
app.command(train_app)
app.command(import_app)
app.command(eval_app)
app.command(verify_command, name="verify")
app.command(demo)
app.command(serve)


def main(argv: list[str] | None = None) -> None:
    """Run one command; a known error, or a path that fails, prints one line and exits with 2."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        _check_unicode(arguments)
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
