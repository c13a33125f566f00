"""`catalog.json`: what a catalogue folder says about its arrays, and the hashes that hold both to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from relaygr.generation.catalogue.index import MAX_NODES, CatalogueIndex, code_dtype
from relaygr.generation.catalogue.names import Names
from relaygr.generation.catalogue.rows import MAX_LEVELS, MAX_SIZE
from relaygr.generation.catalogue.tokens import PromptTemplate, TokenSpec

Array: TypeAlias = npt.NDArray[Any]
Form: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]  # type and shape of an array

FORMAT = "relaygr-catalogue"
FORMAT_VERSION = 1


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands in `catalog.json`.

    Attributes:
        sizes: V_l of each level; nodes: n_l of each level.
        items: positions; hidden: items that only have codes.
        strings: how many item ids are strings, None if they are whole numbers; string_bytes: their UTF-8.
        flags: names of filters, ascending.
        tokens: the tokens of codes; template: what surrounds codes in a prompt.
        source: what it was made of, in words.
        codebooks: digest of the codebooks that the semantic ids are of; empty if unknown.
        as_of_s: Unix seconds of the data. Items withdrawn since then are still denied.
        created_at_s: Unix seconds.
        content: BLAKE2b-128 of the arrays, levels, flags, tokens and template: the version of the catalogue.
        digest: BLAKE2b-128 of everything else here.
    """

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    sizes: tuple[int, ...]
    nodes: tuple[int, ...]
    items: int
    hidden: int
    strings: int | None
    string_bytes: int
    flags: tuple[str, ...]
    tokens: TokenSpec | None
    template: PromptTemplate
    source: str
    codebooks: str = ""
    as_of_s: float
    created_at_s: float
    content: str = ""
    digest: str = ""

    def with_digest(self) -> Header:
        blank = msgspec.structs.replace(self, digest="")
        return msgspec.structs.replace(self, digest=_hash(msgspec.json.encode(blank)))

    def content_of(self, arrays: Mapping[str, Array]) -> str:
        """The content hash of `arrays` under this header."""
        meaning = (self.sizes, self.flags, self.tokens, self.template)
        digest = hashlib.blake2b(msgspec.json.encode(meaning), digest_size=16)
        for name, array in arrays.items():
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        return digest.hexdigest()

    def problem(self) -> str | None:
        """Why these numbers can not be those of a catalogue, None if they can."""
        if self.format != FORMAT:
            return f"format {self.format[:64]!r}, expected {FORMAT!r}"
        if self.format_version != FORMAT_VERSION:
            return f"format_version {self.format_version}, this release reads {FORMAT_VERSION}"
        if not 1 <= len(self.sizes) <= MAX_LEVELS or len(self.nodes) != len(self.sizes):
            return f"{len(self.sizes)} sizes and {len(self.nodes)} nodes, limit 1 to {MAX_LEVELS} of both"
        for name, values, limit in (("sizes", self.sizes, MAX_SIZE), ("nodes", self.nodes, MAX_NODES)):
            if not all(1 <= value <= limit for value in values):
                return f"{name} {list(values)}, limit 1 to {limit}"
        counts = {"items": self.items, "hidden": self.hidden, "string_bytes": self.string_bytes}
        for name, count in (counts | {"strings": self.strings or 0}).items():
            if not 0 <= count < 1 << 48:
                return f"{name} {count} is out of range"
        if not 1 <= self.items <= MAX_NODES:
            return f"items {self.items}, limit 1 to {MAX_NODES}"
        if list(self.flags) != sorted(set(self.flags)):
            return "flags are not ascending"
        return None if self.digest == self.with_digest().digest else "its digest does not match"

    def forms(self) -> dict[str, Form]:
        """The arrays that belong to this header, in the order in which they are hashed."""
        int32, int64, levels = np.dtype("<i4"), np.dtype("<i8"), len(self.sizes)
        forms: dict[str, Form] = {}
        above = 1
        for level, (size, nodes) in enumerate(zip(self.sizes, self.nodes, strict=True), start=1):
            forms[f"codes_{level}"] = code_dtype(size), (nodes,)
            forms[f"ptr_{level}"] = int32, (above + 1,)
            above = nodes
        forms |= {
            "item_ptr": (int32, (above + 1,)),
            "items": (int64, (self.items,)),
            "by_id": (int64, (self.items,)),
            "order": (int32, (self.items,)),
            "hidden_items": (int64, (self.hidden,)),
            "hidden_codes": (int32, (self.hidden, levels)),
        }
        for at in range(len(self.flags)):
            forms[f"flag_{at}"] = np.dtype(np.uint8), ((self.items + 7) // 8,)
        if self.strings is not None:
            forms["names_offsets"] = int64, (self.strings + 1,)
            forms["names_blob"] = np.dtype(np.uint8), (self.string_bytes,)
        return forms


def arrays_of(index: CatalogueIndex) -> dict[str, Array]:
    """The arrays of an index under the names of `Header.forms`, in the same order."""
    arrays: dict[str, Array] = {}
    for level in range(1, index.levels + 1):
        arrays[f"codes_{level}"] = index.codes[level - 1]
        arrays[f"ptr_{level}"] = index.ptr[level - 1]
    for name in ("item_ptr", "items", "by_id", "order", "hidden_items", "hidden_codes"):
        arrays[name] = getattr(index, name)
    for at, name in enumerate(sorted(index.flags)):
        arrays[f"flag_{at}"] = index.flags[name]
    if index.names is not None:
        arrays["names_offsets"], arrays["names_blob"] = index.names.offsets, index.names.blob
    return arrays


def index_of(header: Header, arrays: Mapping[str, Array]) -> CatalogueIndex:
    """The index that `arrays` under `header` are."""
    levels = range(1, len(header.sizes) + 1)
    names = None
    if header.strings is not None:
        names = Names(arrays["names_offsets"], arrays["names_blob"])
    return CatalogueIndex(
        sizes=header.sizes,
        codes=tuple(arrays[f"codes_{level}"] for level in levels),
        ptr=tuple(arrays[f"ptr_{level}"] for level in levels),
        item_ptr=arrays["item_ptr"],
        items=arrays["items"],
        by_id=arrays["by_id"],
        order=arrays["order"],
        hidden_items=arrays["hidden_items"],
        hidden_codes=arrays["hidden_codes"],
        flags={name: arrays[f"flag_{at}"] for at, name in enumerate(header.flags)},
        names=names,
    )


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
