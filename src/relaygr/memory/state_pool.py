"""Room for recurrent states of prompts: allocated once, given out whole."""

from __future__ import annotations

import torch

from relaygr.memory.recurrent import PromptState, RecurrentLayout, buffers


class PooledState(PromptState):
    """A state in memory of a pool; `release` gives that back, once, and nothing may use it afterwards.

    Attributes:
        pool: whose memory it is.
    """

    def __init__(self, pool: StatePool, place: int) -> None:
        states, rows = pool._memory
        super().__init__(pool.layout, parts=(states[place], rows[place]))
        self.pool, self._place = pool, place
        self.released = False

    def release(self) -> None:
        """Again is a no-op."""
        if not self.released:
            self.released = True
            self.pool._free.append(self._place)


class StatePool:
    """All recurrent states of one tier, of one model.

    Changes: only its books, on `take` and on `PooledState.release`. Not thread-safe.
    "No" is None.

    Args:
        total_bytes: never more than this; rounded down to whole states, and there may be none.
    """

    def __init__(self, layout: RecurrentLayout, total_bytes: int, device: torch.device | str = "cpu") -> None:
        self.layout, self.state_bytes = layout, layout.prompt_bytes.total
        self.states = total_bytes // self.state_bytes
        # Written to, so that the pages are the process's own before the first request.
        self._memory = buffers(layout, device, self.states)
        self._free = list(range(self.states))[::-1]

    @property
    def nbytes(self) -> int:
        return self.states * self.state_bytes

    @property
    def free(self) -> int:
        """States that `take` would give now."""
        return len(self._free)

    def take(self) -> PooledState | None:
        """One that holds anything yet: `clear` it, or let it `copy_from` another. None if none is free."""
        return PooledState(self, self._free.pop()) if self._free else None
