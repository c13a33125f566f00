"""Where embeddings of items come from: a trained ranker over the items of a dataset, or an .npz file."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.generation.sids.nearest import Float32s, Float64s, Int64s
from relaygr.kernels.interface import Kernel
from relaygr.models.ranker import Ranker
from relaygr.models.tokens.relay import RelayTokens

_ROWS = 4096  # items of one pass
# What numpy and zipfile raise for other files: a lone array is no context, a member may be locked.
_UNREADABLE = (ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True, eq=False)
class ItemEmbeddings:
    """Items and what they are like.

    Attributes:
        item_ids: int64 [n].
        embeddings: float32 [n, D].
        priority: float64 [n].
        fitted: int64, positions of the items that codebooks should be fitted on.
    """

    item_ids: Int64s
    embeddings: Float32s
    priority: Float64s
    fitted: Int64s


def from_ranker(model: Ranker, events: Events, kernel: Kernel, before_s: int) -> ItemEmbeddings:
    """Item tokens of a ranker for all items of a dataset.

    A ranker knows nothing of items that came after its training; codebooks are fitted on those before.

    Args:
        before_s: end of the training part. Events before it give the priority, an item's count.

    Raises:
        ConfigError: the ranker's variant has no tokens of items by themselves, or nothing is before the end.
    """
    if not isinstance(model.tokens, RelayTokens):
        raise ConfigError("ranker", "its variant has no item tokens; take embeddings from a file instead")
    items = np.unique(events.item_ids).astype(np.int64)
    known, counts = np.unique(events.item_ids[events.timestamps < before_s], return_counts=True)
    fitted = np.searchsorted(items, known).astype(np.int64)
    if not fitted.size:
        raise ConfigError("events", f"{events.path} has no event before the end of training, {before_s} s")
    priority = np.zeros(len(items))
    priority[fitted] = counts
    tokens = model.tokens
    with torch.inference_mode():
        parts = [
            tokens.items(torch.from_numpy(items[first : first + _ROWS]), kernel).float().numpy()
            for first in range(0, len(items), _ROWS)
        ]
    return ItemEmbeddings(items, np.concatenate(parts), priority, fitted)


def from_npz(file: Path) -> ItemEmbeddings:
    """Arrays `item_ids` int64 [n], `embeddings` [n, D] and, if there is one, `priority` [n] of an .npz file.

    Raises:
        ConfigError: the file cannot be read, or an array is missing or of another kind or shape.
    """
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read: {error.strerror or error}") from error
    except _UNREADABLE as error:
        raise ConfigError(str(file), f"is not an .npz file of arrays: {error}") from error
    missing = [name for name in ("item_ids", "embeddings") if name not in arrays]
    if missing:
        raise ConfigError(
            str(file), f"has no {' and no '.join(missing)}; it has {', '.join(arrays) or 'none'}"
        )
    items, data = arrays["item_ids"], arrays["embeddings"]
    if items.ndim != 1 or items.dtype.kind not in "iu" or (items.size and int(items.max()) >= 1 << 63):
        raise ConfigError(str(file), f"item_ids are {items.dtype} {list(items.shape)}, wanted int64 [items]")
    if data.ndim != 2 or data.dtype.kind != "f" or len(data) != len(items):
        raise ConfigError(
            str(file), f"embeddings are {data.dtype} {list(data.shape)}, wanted floats [{len(items)}, width]"
        )
    priority = arrays.get("priority", np.zeros(len(items)))
    if priority.shape != items.shape or priority.dtype.kind not in "iuf":
        raise ConfigError(
            str(file), f"priority is {priority.dtype} {list(priority.shape)}, wanted {len(items)} numbers"
        )
    return ItemEmbeddings(
        items.astype(np.int64),
        data.astype(np.float32),
        priority.astype(np.float64),
        np.arange(len(items), dtype=np.int64),
    )
