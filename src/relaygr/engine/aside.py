"""A request that is scored without the cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relaygr.engine.requests import RankRequest
from relaygr.memory.stores import PrivateKv


class Aside:
    """A request that is scored without the cache, a step at a time, beside everything else.

    Attributes:
        filled: history tokens computed so far.
        logits: float32 [m, tasks], when all of it is done.
    """

    def __init__(self, request: RankRequest) -> None:
        self.request = request
        self.filled = 0
        self.logits: npt.NDArray[np.float32] | None = None
        self.store: PrivateKv | None = None
