"""A folder of logs, items and a value function from a world of known truth, as a server would leave them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from relaygr.core.errors import BackendError
from relaygr.listwise.slate_log import SlateLog
from relaygr.training.slate.read_log import records_of
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.world import DOCUMENT, HEADS, World

LOGS, ITEMS, VALUE_FILE = "logs", "items.npz", "value.json"
MOST_LISTS = 1_000_000
_CHUNK = 1000  # lists that are written at once
_SEED = 11_000_003  # added: requests of their own


def write_world(folder: Path, world: World, lists: int, seed: int) -> None:
    """Write `logs/`, `items.npz` and `value.json`: `lists` explored lists of as many users.

    Raises:
        BackendError: the file system refuses.
    """
    log = SlateLog(folder / LOGS, HEADS)
    requests = world.requests(lists, seed + _SEED)
    found = explored_logs(requests, seed).logs
    for first in range(0, lists, _CHUNK):
        rows = np.arange(first, min(first + _CHUNK, lists))
        part = requests.select(rows)
        log.write(records_of(found.select(rows), part.items, part.logits[..., None]))
    try:
        (folder / VALUE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(DOCUMENT)) + b"\n")
        np.savez(
            folder / ITEMS,
            item_ids=np.arange(world.config.items),
            topic=world.topics,
            author=world.authors,
            vectors=world.vectors,
        )
    except OSError as error:
        raise BackendError(f"cannot write {folder}: {error.strerror or error}") from error
