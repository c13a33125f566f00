"""The `relaygr` command: one sub-command a file, errors on standard error with exit status 2."""

from __future__ import annotations

import sys

from cyclopts import App
from rich.console import Console

from relaygr import __version__
from relaygr.cli.bench import bench_app
from relaygr.cli.data import data_app
from relaygr.cli.demo import demo
from relaygr.cli.doctor import doctor
from relaygr.cli.evaluate import eval_app
from relaygr.cli.plan import plan_app
from relaygr.cli.train import train_app
from relaygr.cli.verify import verify_command
from relaygr.core.errors import RelayError

app = App(
    name="relaygr",
    help="Rank long user histories inside a latency budget.",
    version=__version__,
)
app.command(data_app)
app.command(bench_app)
app.command(doctor)
app.command(plan_app)
app.command(train_app)
app.command(eval_app)
app.command(verify_command, name="verify")
app.command(demo)


def main(argv: list[str] | None = None) -> None:
    """Run one command; a known error prints one line and exits with 2."""
    try:
        result = app(sys.argv[1:] if argv is None else argv)
    except RelayError as error:
        Console(stderr=True).print(f"relaygr: {error}", style="bold red", markup=False, soft_wrap=True)
        raise SystemExit(2) from error
    if isinstance(result, int) and result:
        raise SystemExit(result)
