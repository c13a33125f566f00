"""`relaygr import`: models from checkpoints of other implementations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape

from relaygr.models.imports.names import Source
from relaygr.models.imports.notes import ImportReport
from relaygr.models.imports.run import ImportJob, run_import

import_app = App(name="import", help="Turn published checkpoints into models.")

_MEANS = {
    "append": "prefixes are kept between requests and extended by new events",
    "request": "a prefix serves the candidates of one request and is not kept between requests",
    "none": "a prefix serves one pass",
}


@import_app.command
def hstu(
    source: Path,
    *,
    from_: Annotated[Source, Parameter(name="--from")],
    out: Path,
    config: Path | None = None,
    scaling_seqlen: int | None = None,
    tables: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = (),
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> None:
    """Import an HSTU checkpoint: every tensor is accounted for, or nothing is written.

    Parameters
    ----------
    source: Path
        A .pt, .pth, .ckpt or .safetensors file, or the folder that the published code writes.
    from_: Source
        Whose checkpoint it is.
    out: Path
        Folder of the model; `import.json` beside it says what was read.
    config: Path | None
        JSON or TOML of what shapes do not tell, under the published names or ours.
    scaling_seqlen: int | None
        Divisor of attention, for models that divide by the longest row of a batch.
    tables: tuple[str, ...]
        Embedding tables of other files, as name=file or name=file:key.
    set: tuple[str, ...]
        A setting, `key=value`; may be given more than once.
    """
    job = ImportJob(from_, source, out, config, scaling_seqlen, tables, set)
    report = run_import(job)
    Console().print(escape(_summary(report, out)), soft_wrap=True)


def _summary(report: ImportReport, out: Path) -> str:
    layout = "" if report.projection == "block" else f", rows of the projection {report.projection}"
    lines = [
        f"detected {report.detected}{layout}",
        *(f"assumed: {one}" for one in report.assumed),
        *(f"warning: {one}" for one in report.warnings),
        f"golden example of {report.variant}: largest difference {report.golden_difference:.1e}",
        f"cacheable = {report.cacheable}: {_MEANS[report.cacheable]}",
        f"{out}: {report.variant}, divisor {report.scaling_seqlen}, model {report.fingerprint}",
    ]
    return "\n".join(lines)
