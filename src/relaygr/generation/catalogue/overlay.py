"""Items withdrawn since a catalogue was built: denied to everybody until a build knows of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from relaygr.core.errors import RequestError
from relaygr.generation.catalogue.index import CatalogueIndex, Int32s, ItemId


class Overlay:
    """Which items were withdrawn, and when. Not thread-safe.

    An item is denied in catalogues whose data is not newer than its withdrawal, so that going back to an
    older catalogue brings back what was withdrawn from it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._since: dict[ItemId, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def withdraw(self, ids: Sequence[ItemId], now_s: float) -> None:
        """Deny `ids` from now on.

        Raises:
            RequestError: there would be more than the limit; nothing is withdrawn.
        """
        total = len(self._since.keys() | set(ids))
        if total > self._limit:
            raise RequestError("items", f"{total} items would be withdrawn, limit {self._limit}")
        self._since.update(dict.fromkeys(ids, now_s))

    def restore(self, ids: Iterable[ItemId]) -> int:
        """Allow `ids` again; how many of them were withdrawn."""
        return sum(self._since.pop(one, None) is not None for one in ids)

    def prune(self, oldest_as_of_s: float) -> None:
        """Forget what no catalogue of that age or newer would deny."""
        self._since = {one: since for one, since in self._since.items() if since >= oldest_as_of_s}

    def positions(self, index: CatalogueIndex, as_of_s: float) -> Int32s:
        """What is denied in a catalogue: ascending positions, each once."""
        kind = int if index.names is None else str
        # Ids of another kind were withdrawn from another catalogue and can not be in this one.
        ids = [one for one, since in self._since.items() if since >= as_of_s and isinstance(one, kind)]
        found = index.positions_of("items", ids) if ids else np.zeros(0, np.int32)
        found.flags.writeable = False
        return found
