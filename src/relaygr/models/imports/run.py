"""Import one checkpoint: read, detect, convert, compare with the stored example, and only then write."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import Tensor

from relaygr.config.paths import check_folder
from relaygr.core.errors import ConfigError
from relaygr.models.hstu import HstuConfig
from relaygr.models.imports import meta, nvidia, research
from relaygr.models.imports.golden import golden_difference
from relaygr.models.imports.layout import Detected, detect
from relaygr.models.imports.ledger import Ledger
from relaygr.models.imports.names import Source
from relaygr.models.imports.notes import ImportReport, Notes
from relaygr.models.imports.reading import Contents, FileRecord
from relaygr.models.imports.settings import Given, Settings, read_settings
from relaygr.models.imports.source import add_tables, read_source
from relaygr.models.initial import blank
from relaygr.models.ranker import Ranker
from relaygr.models.weights import CONFIG_FILE, WEIGHTS_FILE, save_ranker

REPORT_FILE = "import.json"

Converter = Callable[[Ledger, Settings, Detected, int | None, Notes], HstuConfig]
_CONVERTERS: dict[Source, Converter] = {
    "meta": meta.convert,
    "research": research.convert,
    "nvidia": nvidia.convert,
}


@dataclass(frozen=True, slots=True)
class ImportJob:
    """What to import.

    Attributes:
        source: whose checkpoint it is; another one is refused.
        path: a file, or the folder that the published code writes.
        out: folder of the model.
        config: settings as JSON or TOML, or None.
        scaling_seqlen: the divisor of a model without a fixed one.
        tables: tables of other files, `name=file[:key]`.
        overrides: settings as `key=value`.
    """

    source: Source
    path: Path
    out: Path
    config: Path | None = None
    scaling_seqlen: int | None = None
    tables: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Imported:
    """A model in memory and what there is to say about it."""

    model: Ranker
    detected: Detected
    ledger: Ledger
    notes: Notes


def run_import(job: ImportJob) -> ImportReport:
    """Write the model and `import.json`; nothing is written before everything is checked.

    Raises:
        ConfigError: a setting, a file or a tensor is wrong, or the checkpoint is of another source or kind.
        BackendError: the stored example of the variant is not reproduced.
    """
    check_folder("--out", job.out)
    given = read_settings(job.source, job.config, job.overrides)
    contents = read_source(job.path)
    detected = detect(str(job.path), contents.values, job.source)
    contents = add_tables(contents, job.source, job.tables)
    _keep_inputs(job, contents)
    imported = _convert(job, given, contents, detected)
    difference = golden_difference(imported.model.config.variant)  # type: ignore[union-attr]
    fingerprint = save_ranker(imported.model, job.out)
    report = _report(job, given, contents, imported, difference, fingerprint.hex())
    _write(job.out / REPORT_FILE, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return report


def _convert(job: ImportJob, given: Given, contents: Contents, detected: Detected) -> Imported:
    notes = Notes()
    ledger = Ledger(str(job.path), contents.values)
    config = _CONVERTERS[job.source](ledger, given.settings, detected, job.scaling_seqlen, notes)
    if ledger.rounded:
        notes.warnings.append("float64 tensors were rounded to float32")
    with blank():
        model = Ranker(config)
    model.load_state_dict(_unshared(ledger.state), assign=True)
    return Imported(model.eval().requires_grad_(False), detected, ledger, notes)


def _unshared(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights in memory of their own: one table may be read by two features, layers may share weights."""
    seen: set[int] = set()
    own = {}
    for name, tensor in state.items():
        storage = tensor.untyped_storage()
        shared = storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes
        own[name] = tensor.clone() if shared else tensor
        seen.add(storage.data_ptr())
    return own


def _keep_inputs(job: ImportJob, contents: Contents) -> None:
    """Refuse to write over a file that was read."""
    read = [Path(file.path).resolve() for file in contents.files]
    for name in (CONFIG_FILE, WEIGHTS_FILE, REPORT_FILE):
        target = (job.out / name).resolve()
        if target in read or (job.config is not None and target == job.config.resolve()):
            raise ConfigError("--out", f"{job.out / name} is one of the files to import")


def _report(
    job: ImportJob,
    given: Given,
    contents: Contents,
    imported: Imported,
    difference: float,
    fingerprint: str,
) -> ImportReport:
    config = imported.model.config
    assert isinstance(config, HstuConfig)
    files = contents.files + ((FileRecord.of(job.config),) if job.config is not None else ())
    return ImportReport(
        source=job.source,
        detected=imported.detected.title,
        projection=imported.detected.projection,
        variant=config.variant,
        cacheable=config.cacheable,
        scaling_seqlen=config.scaling_seqlen,
        files=files,
        aliases=given.aliases,
        unused_settings=given.unused,
        ignored_tensors=tuple(imported.ledger.ignored),
        assumed=tuple(imported.notes.assumed),
        warnings=tuple(imported.notes.warnings),
        golden_difference=difference,
        fingerprint=fingerprint,
    )


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
