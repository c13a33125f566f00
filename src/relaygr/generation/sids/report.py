"""How good semantic ids are: use of each level, collisions, error, and what changed since another build."""

from __future__ import annotations

import msgspec
import numpy as np

from relaygr.generation.sids.collisions import ids_of
from relaygr.generation.sids.nearest import Float32s, Int32s, Int64s
from relaygr.generation.sids.quantise import Codebooks


class LevelReport(msgspec.Struct, frozen=True, kw_only=True):
    """One level.

    Attributes:
        size: codes that there are.
        used: codes that some item has; `utilisation` is their share.
        perplexity: exp of the entropy of the codes: as many equally frequent codes would be as surprising.
        prefixes: different ids up to this level.
        residual_energy: mean squared length of what this level leaves, over that of the embeddings; None for
            a level that only numbers items.
    """

    size: int
    used: int
    utilisation: float
    perplexity: float
    prefixes: int
    residual_energy: float | None


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """How ids of the items of two builds differ.

    Attributes:
        common, added, removed: items of both, of the new one only, of the old one only.
        changed: for each level, share of the common items whose codes up to it are others. Codes of a refit
            are named anew, so that this is near 1 after one.
        regrouped: for each level, share of the common items that left the group they were in: 1 less the
            share that the most frequent new prefix has in each old one. Names of codes do not matter.
    """

    common: int
    added: int
    removed: int
    changed: tuple[float, ...]
    regrouped: tuple[float, ...]


class SidReport(msgspec.Struct, frozen=True, kw_only=True):
    """One build.

    Attributes:
        collision_rate: share of the items that share their id with another.
        largest_sid: most items of one id.
        reconstruction_error: mean squared error over the mean squared length, after collisions.
        moved, left, added_error: of "reassign": items moved, items that still share, and what the moves
            added to the reconstruction error.
        notes: what was done otherwise than asked.
        drift: against the build named on the command line, if there was one.
    """

    items: int
    sids: int
    collision_rate: float
    largest_sid: int
    reconstruction_error: float
    levels: tuple[LevelReport, ...]
    moved: int = 0
    left: int = 0
    added_error: float = 0.0
    notes: tuple[str, ...] = ()
    drift: Drift | None = None


def describe(
    books: Codebooks, sizes: tuple[int, ...], embeddings: Float32s, codes: Int32s, notes: tuple[str, ...]
) -> SidReport:
    """The report on codes [n, L] of embeddings [n, D]; `sizes` has one more level with "digit"."""
    energies = books.energies(embeddings, codes)
    whole = max(float(energies[0]), np.finfo(np.float64).tiny)
    levels = []
    for level, size in enumerate(sizes):
        counts = np.bincount(codes[:, level], minlength=size)
        shares = counts[counts > 0] / len(codes)
        levels.append(
            LevelReport(
                size=size,
                used=len(shares),
                utilisation=len(shares) / size,
                perplexity=float(np.exp(-(shares * np.log(shares)).sum())),
                prefixes=len(ids_of(codes[:, : level + 1])[1]),
                residual_energy=float(energies[level + 1] / whole) if level + 1 < len(energies) else None,
            )
        )
    which, counts = ids_of(codes)
    return SidReport(
        items=len(codes),
        sids=len(counts),
        collision_rate=float((counts[which] > 1).mean()),
        largest_sid=int(counts.max()),
        reconstruction_error=float(energies[-1] / whole),
        levels=tuple(levels),
        notes=notes,
    )


def drift(old_items: Int64s, old_codes: Int32s, new_items: Int64s, new_codes: Int32s) -> Drift:
    """What changed between two builds; each names an item once."""
    common, old_at, new_at = np.intersect1d(old_items, new_items, assume_unique=True, return_indices=True)
    old, new = old_codes[old_at], new_codes[new_at]
    changed, regrouped = [], []
    for level in range(1, min(old.shape[1], new.shape[1]) + 1):
        if not len(common):
            changed.append(0.0)
            regrouped.append(0.0)
            continue
        changed.append(float((old[:, :level] != new[:, :level]).any(axis=1).mean()))
        pairs = np.stack([ids_of(old[:, :level])[0], ids_of(new[:, :level])[0]], axis=1)
        both, counts = np.unique(pairs, axis=0, return_counts=True)
        most = np.zeros(int(both[:, 0].max()) + 1, dtype=np.int64)
        np.maximum.at(most, both[:, 0], counts)
        regrouped.append(1 - float(most.sum() / len(common)))
    return Drift(
        common=len(common),
        added=len(new_items) - len(common),
        removed=len(old_items) - len(common),
        changed=tuple(changed),
        regrouped=tuple(regrouped),
    )
