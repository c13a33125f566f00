"""Copies of a prompt's recurrent state as it grew: it cannot be cut back, so reuse begins at a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from relaygr.core.ids import Fingerprint
from relaygr.memory.recurrent import PromptState


@dataclass(frozen=True, slots=True, eq=False)
class StateSnapshot:
    """A state that nobody goes on with; continue a copy of it.

    Attributes:
        state: behind its first `tokens` tokens.
        digest: of the content of these tokens.
        version: of the weights.
    """

    state: PromptState
    digest: bytes
    version: Fingerprint

    @property
    def tokens(self) -> int:
        return self.state.tokens

    @property
    def nbytes(self) -> int:
        return self.state.nbytes.total


class StateSnapshots:
    """The snapshots of one prompt.

    Changes: `keep` adds one, `drop` takes those away that are behind a place.
    Raises: ValueError if `every` is below 1, or a snapshot stands behind nothing.

    Args:
        every: tokens between two snapshots, counted from the prompt's start. A whole multiple of the
            kernel's chunk makes a continued prompt the same as an uninterrupted one to the bit; any other
            to the precision of fp32.
        version: of the weights.
    """

    def __init__(self, every: int, version: Fingerprint) -> None:
        if every < 1:
            raise ValueError(f"every: {every} must be at least 1")
        self.every, self.version = every, version
        self._kept: dict[int, StateSnapshot] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        return sum(snapshot.nbytes for snapshot in self._kept.values())

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """[start, end) cut where snapshots are due: each piece ends at one, but for the last, which may."""
        while start < end:
            stop = min((start // self.every + 1) * self.every, end)
            yield start, stop
            start = stop

    def keep(self, state: PromptState, digest: bytes) -> StateSnapshot:
        """Copy the state as it is now, at a multiple of `every` or at the prefix's end."""
        if state.tokens < 1:
            raise ValueError("state: stands behind no token")
        snapshot = StateSnapshot(state.copy(), digest, self.version)
        self._kept[state.tokens] = snapshot
        return snapshot

    def before(
        self, tokens: int, version: Fingerprint, digest_of: Callable[[int], bytes]
    ) -> StateSnapshot | None:
        """The latest snapshot at or before `tokens` that still holds; None if there is none.

        Args:
            tokens: how many tokens the other kinds of layers can reuse.
            version: of the weights now.
            digest_of: content digest of the first so many tokens of the prompt now.
        """
        if version != self.version:
            return None
        for at in sorted(self._kept, reverse=True):
            if at <= tokens and digest_of(at) == self._kept[at].digest:
                return self._kept[at]
        return None

    def drop(self, tokens: int) -> int:
        """Forget what stands behind more than `tokens` tokens; returns the freed bytes."""
        gone = [self._kept.pop(at) for at in list(self._kept) if at > tokens]
        return sum(snapshot.nbytes for snapshot in gone)
