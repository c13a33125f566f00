"""Semantic ids of a set of items, and ids of items that come later, with the codebooks as they are."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.generation.sids.collisions import Moves, digits, reassign
from relaygr.generation.sids.nearest import Float32s, Float64s, Int32s, Int64s
from relaygr.generation.sids.quantise import Codebooks, SidConfig, fit_codebooks, input_digest
from relaygr.generation.sids.report import SidReport, describe, drift


@dataclass(frozen=True, slots=True, eq=False)
class SemanticIds:
    """Codebooks and the ids of the items that were encoded with them.

    Attributes:
        config: what was asked.
        sizes: codes of each level; with "digit" one more level than the codebooks have.
        item_ids: int64 [n], ascending, each once.
        codes: int32 [n, L].
        priority: float64 [n], higher first among the items of one id.
        digest: of the embeddings that the codebooks were fitted on, and of their items.
        report: of the build.
    """

    config: SidConfig
    codebooks: Codebooks
    sizes: tuple[int, ...]
    item_ids: Int64s
    codes: Int32s
    priority: Float64s
    digest: str
    report: SidReport

    @property
    def levels(self) -> int:
        return len(self.sizes)

    def codes_of(self, items: Int64s) -> Int32s:
        """Codes [m, L] of `items` [m]; -1 in all levels of an unknown one."""
        if not len(self.item_ids):
            return np.full((len(items), self.levels), -1, dtype=np.int32)
        at = np.minimum(np.searchsorted(self.item_ids, items), len(self.item_ids) - 1)
        known = self.item_ids[at] == items
        return np.where(known[:, None], self.codes[at], np.int32(-1))


def build_sids(
    item_ids: Int64s,
    embeddings: Float32s,
    config: SidConfig,
    priority: Float64s | None = None,
    fitted: Int64s | None = None,
    previous: SemanticIds | None = None,
) -> SemanticIds:
    """Fit codebooks and give every item its id.

    Args:
        item_ids: int64 [n], each once, in any order.
        embeddings: [n, D].
        priority: [n], 0 by default.
        fitted: positions of the items that codebooks are fitted on, all by default; the others are encoded
            as new items are.
        previous: a build that the report compares this one with.

    Raises:
        ConfigError: an item stands twice, there are none, or a value is not finite.
    """
    order, weight = _sorted(item_ids, embeddings, priority)
    chosen = np.zeros(len(item_ids), dtype=bool)
    chosen[np.arange(len(item_ids)) if fitted is None else fitted] = True
    if not chosen.any():
        raise ConfigError("embeddings", "there is no item to fit codebooks on")
    items, data, first = item_ids[order], embeddings[order], chosen[order]
    books, notes = fit_codebooks(data[first], config)
    codes = np.empty((len(items), len(books.sizes)), dtype=np.int32)
    codes[first] = books.encode(data[first])
    codes[~first] = books.encode(data[~first])
    sizes, moves = books.sizes, Moves(0, 0, 0.0)
    if config.collision == "reassign":
        codes, moves = reassign(books, data, codes, config.neighbours)
    elif config.collision == "digit":
        extra = digits(codes, weight, items)
        sizes = (*sizes, int(extra.max()) + 1)
        codes = np.concatenate([codes, extra[:, None].astype(np.int32)], axis=1)
    if not first.all():
        notes += (f"{int((~first).sum())} of {len(items)} items encoded with codebooks of the others",)
    report = describe(books, sizes, data, codes, notes)
    energy = max(float(books.energies(data, codes)[0]) * len(data), float(np.finfo(np.float64).tiny))
    report = msgspec.structs.replace(
        report,
        moved=moves.moved,
        left=moves.left,
        added_error=moves.added / energy,
        drift=None if previous is None else drift(previous.item_ids, previous.codes, items, codes),
    )
    digest = input_digest(items[first], np.asarray(data[first], dtype=np.float32))
    return SemanticIds(config, books, sizes, items, codes, weight, digest, report)


def add_items(
    sids: SemanticIds, item_ids: Int64s, embeddings: Float32s, priority: Float64s | None = None
) -> SemanticIds:
    """`sids` with new items, whose codebooks and old ids stay as they are; the report is that of the build.

    With "digit" numbers go on behind those in use. A number that the model has no code for is an error: the
    catalogue and the model have to be built anew then.

    Raises:
        ConfigError: an item is known already or stands twice, an embedding does not fit, or digits ran out.
    """
    order, weight = _sorted(item_ids, embeddings, priority)
    items, data = item_ids[order], embeddings[order]
    known = np.intersect1d(items, sids.item_ids)
    if known.size:
        raise ConfigError("item_ids", f"{int(known[0])} has an id already, and {known.size - 1} more")
    books = sids.codebooks
    codes = books.encode(data)
    if sids.config.collision == "reassign":
        codes, _ = reassign(books, data, codes, sids.config.neighbours, sids.codes)
    elif sids.config.collision == "digit":
        extra = digits(codes, weight, items, sids.codes[:, :-1])
        over = np.flatnonzero(extra >= sids.sizes[-1])
        if over.size:
            at = int(over[0])
            raise ConfigError(
                "item_ids",
                f"{int(items[at])} would be number {int(extra[at])} of its id, limit {sids.sizes[-1] - 1}; "
                f"{over.size - 1} more",
            )
        codes = np.concatenate([codes, extra[:, None].astype(np.int32)], axis=1)
    merged = np.concatenate([sids.item_ids, items])
    place = np.argsort(merged, kind="stable")
    return SemanticIds(
        sids.config,
        books,
        sids.sizes,
        merged[place],
        np.concatenate([sids.codes, codes])[place],
        np.concatenate([sids.priority, weight])[place],
        sids.digest,
        sids.report,
    )


def _sorted(item_ids: Int64s, embeddings: Float32s, priority: Float64s | None) -> tuple[Int64s, Float64s]:
    """(order of the items [n], their priority in that order [n])."""
    if len(item_ids) != len(embeddings):
        raise ConfigError("embeddings", f"{len(embeddings)} rows for {len(item_ids)} items")
    order = np.argsort(item_ids, kind="stable").astype(np.int64)
    twice = np.flatnonzero(np.diff(item_ids[order]) == 0)
    if twice.size:
        raise ConfigError("item_ids", f"{int(item_ids[order][twice[0]])} stands more than once")
    weight = np.zeros(len(order)) if priority is None else np.asarray(priority, dtype=np.float64)
    if weight.shape != item_ids.shape or not np.isfinite(weight).all():
        raise ConfigError("priority", f"of shape {list(weight.shape)}, wanted {len(order)} finite numbers")
    return order, weight[order]
