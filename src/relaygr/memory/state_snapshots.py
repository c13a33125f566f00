"""Copies of a prompt's recurrent state as it grew: it cannot be cut back, so reuse begins at a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from relaygr.core.ids import Fingerprint
from relaygr.memory.recurrent import PromptState


@dataclass(frozen=True, slots=True)
class SnapshotRule:
    """Where snapshots stand.

    Attributes:
        every: tokens between two of a prompt; made a multiple of `grain`.
        most: of one prompt, its end apart.
        grain: the kernel's; prompts go on from its multiples only, so that they have the same bits.
    """

    every: int
    most: int
    grain: int

    @property
    def step(self) -> int:
        return -(-self.every // self.grain) * self.grain

    def stop(self, done: int, total: int) -> int:
        """Where a prompt of `total` tokens, of which `done` are computed, is cut next."""
        stop, last = min((done // self.step + 1) * self.step, total), self.last(total)
        return last if done < last < stop else stop

    def due(self, done: int, total: int) -> bool:
        return 0 < done < total and (done % self.step == 0 or done == self.last(total))

    def last(self, total: int) -> int:
        """Where what comes behind a prompt goes on from."""
        return total // self.grain * self.grain


@dataclass(frozen=True, slots=True, eq=False)
class StateSnapshot:
    """A state that nobody goes on with; continue a copy of it.

    Attributes:
        state: behind its first `tokens` tokens.
        digest: of the content of these tokens.
        version: of the weights.
        hidden: float32 [1, D] of the last of these tokens, where it is known: a prompt that ends there needs
            nothing else.
    """

    state: PromptState
    digest: bytes
    version: Fingerprint
    hidden: Tensor | None = None

    @property
    def tokens(self) -> int:
        return self.state.tokens

    @property
    def nbytes(self) -> int:
        return self.state.nbytes.total


class StateSnapshots:
    """The snapshots of one prompt.

    Changes: `keep` and `put` add one, and may take another away for it; `drop`, `drop_unless` and `remove`
    take away.
    Raises: ValueError for sizes below 1, or a snapshot that stands behind nothing.

    Args:
        every: tokens between two snapshots, counted from the prompt's start. A whole multiple of the
            kernel's chunk makes a continued prompt the same as an uninterrupted one to the bit; any other
            to the precision of fp32.
        version: of the weights.
        most: snapshots at multiples of `grain`; with one more, the one leaves that is missed least.
        grain: prompts go on from its multiples only; elsewhere stand ends, of which there is one at most.
        on_leave: told of every snapshot that is kept no more, so that its memory can be used again.
    """

    def __init__(
        self,
        every: int,
        version: Fingerprint,
        *,
        most: int | None = None,
        grain: int = 1,
        on_leave: Callable[[StateSnapshot], None] | None = None,
    ) -> None:
        for name, size in (("every", every), ("grain", grain), ("most", 1 if most is None else most)):
            if size < 1:
                raise ValueError(f"{name}: {size} must be at least 1")
        self.every, self.version, self.grain = every, version, grain
        self._most, self._on_leave = most, on_leave
        self._kept: dict[int, StateSnapshot] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[StateSnapshot]:
        """Those behind the fewest tokens first."""
        return iter([snapshot for _, snapshot in sorted(self._kept.items())])

    @property
    def nbytes(self) -> int:
        return sum(snapshot.nbytes for snapshot in self._kept.values())

    @property
    def main(self) -> StateSnapshot | None:
        """The one that a longer prompt goes on from; without it the prompt's end. Others are spare."""
        last = max((at for at in self._kept if at % self.grain == 0), default=max(self._kept, default=None))
        return None if last is None else self._kept[last]

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
        return self.put(StateSnapshot(state.copy(), digest, self.version))

    def put(self, snapshot: StateSnapshot) -> StateSnapshot:
        """Keep a snapshot instead of one behind as many tokens; its memory is nobody else's from now on."""
        if snapshot.tokens < 1:
            raise ValueError("state: stands behind no token")
        self.remove(snapshot.tokens)
        if snapshot.tokens % self.grain:
            for end in [at for at in self._kept if at % self.grain]:
                self.remove(end)
        self._kept[snapshot.tokens] = snapshot
        places = sorted(at for at in self._kept if at % self.grain == 0)
        if self._most is not None and len(places) > self._most:
            self.remove(least_missed(places))
        return snapshot

    def before(
        self, tokens: int, version: Fingerprint, digest_of: Callable[[int], bytes], whole: int = 0
    ) -> StateSnapshot | None:
        """The latest snapshot at or before `tokens` that still holds; None if there is none.

        May be asked beside a change: the answer is then of before or after it.

        Args:
            tokens: how many tokens the other kinds of layers can reuse.
            version: of the weights now.
            digest_of: content digest of the first so many tokens of the prompt now.
            whole: tokens of a prompt whose last hidden state is needed: a snapshot there is of use only if it
                has that, and one behind it, or an end elsewhere, is of none.
        """
        if version != self.version:
            return None
        for at, snapshot in sorted(self._kept.items(), reverse=True):
            if at > tokens or (whole and not self._serves(snapshot, whole)):
                continue
            if digest_of(at) == snapshot.digest:
                return snapshot
        return None

    def drop(self, tokens: int) -> int:
        """Forget what stands behind more than `tokens` tokens; returns the freed bytes."""
        return sum(self.remove(at) for at in list(self._kept) if at > tokens)

    def drop_unless(self, tokens: int, digest_of: Callable[[int], bytes]) -> int:
        """Forget what is not of the first so many tokens of a prompt; returns the freed bytes."""
        freed = self.drop(tokens)
        gone = [at for at, one in self._kept.items() if digest_of(at) != one.digest]
        return freed + sum(self.remove(at) for at in gone)

    def remove(self, at: int) -> int:
        """Forget the snapshot behind so many tokens, if there is one; returns the freed bytes."""
        gone = self._kept.pop(at, None)
        if gone is None:
            return 0
        nbytes = gone.nbytes
        if self._on_leave is not None:
            self._on_leave(gone)
        return nbytes

    def take_out(self, at: int) -> StateSnapshot:
        """As `remove`, but its memory is the caller's."""
        return self._kept.pop(at)

    def _serves(self, snapshot: StateSnapshot, whole: int) -> bool:
        if snapshot.tokens == whole:
            return snapshot.hidden is not None
        return snapshot.tokens < whole and snapshot.tokens % self.grain == 0


def least_missed(places: list[int]) -> int:
    """Which of ascending places a prompt restarts from is missed least; never the last.

    A change as far from the end as another is far from it a factor further counts the same (its chance falls
    as 1 / distance): without place p between a and b a change in [p, b) costs p - a tokens more, so that
    (p - a) ln((end - p) / (end - b)) is what losing it costs, end being a token behind the last.
    """
    end, best, at = places[-1] + 1, math.inf, places[0]
    for before, place, after in zip((0, *places), places, places[1:], strict=False):
        cost = (place - before) * math.log((end - place) / (end - after))
        if cost < best:
            best, at = cost, place
    return at
