"""What an import leaves to read: what it was given, what it assumed and what changes."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from relaygr.models.config import Cacheable
from relaygr.models.imports.names import Source
from relaygr.models.imports.reading import FileRecord
from relaygr.models.variants import Variant


@dataclass(frozen=True, slots=True)
class Notes:
    """Remarks that importers make on the way."""

    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """`import.json`.

    Attributes:
        source, detected: where the checkpoint is from, and what it was told to be by its names.
        projection: order of the projection's rows as stored; the model has "block".
        variant, cacheable, scaling_seqlen: of the model.
        files: everything that was read.
        aliases: published names of settings and what they are called here.
        unused_settings, ignored_tensors: read and of no effect.
        assumed: defaults that nothing given confirmed.
        golden_difference: largest difference of a logit to the stored example of the variant, in float64.
        fingerprint: of the model that was written, hexadecimal.
    """

    source: Source
    detected: str
    projection: str
    variant: Variant
    cacheable: Cacheable
    scaling_seqlen: int
    files: tuple[FileRecord, ...]
    aliases: dict[str, str]
    unused_settings: tuple[str, ...]
    ignored_tensors: tuple[str, ...]
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]
    golden_difference: float
    fingerprint: str
