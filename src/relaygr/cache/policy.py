"""The contract of a replacement policy: which entry of a tier leaves when room is needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Weight(NamedTuple):
    """What an entry takes, and what having it saves.

    Attributes:
        nbytes, tokens: its size.
        rec_ms: computing it anew.
        load_ms: bringing it to where it can be read.
    """

    nbytes: int
    tokens: int
    rec_ms: float
    load_ms: float


class Victim(NamedTuple, Generic[K]):
    """An entry that leaves, or that keeps only its first `keep_tokens` tokens."""

    key: K
    keep_tokens: int = 0


class Policy(ABC, Generic[K]):
    """Order of leaving of the entries of one tier. Deterministic; it holds keys and numbers, never bytes.

    Changes: `touch` is the only update of recency and frequency, and counts a visit of any key, whether it
    is here or not, so that what left or is yet to come is remembered where a policy remembers; `insert` and
    `evict` alone move keys in and out. A visit to what is not here is a `touch` followed, when its bytes
    have come, by an `insert`; they may be far apart.
    Parked entries keep their place and are never victims.
    "No" is None from `evict`: nothing may leave, and then nothing changed.
    Raises: KeyError for a key that is not here, from `remove`, `park` and `unpark`; nothing else.
    Cost: O(log n) amortised a call; bounded memory for what is not here.
    """

    def __init__(self, capacity_bytes: int) -> None:
        """Of a tier of so many bytes, which some policies divide."""
        self.capacity_bytes = capacity_bytes

    @abstractmethod
    def __len__(self) -> int:
        """Entries here, parked ones included."""

    @abstractmethod
    def __contains__(self, key: object) -> bool: ...

    @abstractmethod
    def insert(self, key: K, weight: Weight) -> None:
        """An entry has come; or, for a key that is here, has another weight now and keeps its place."""

    @abstractmethod
    def touch(self, key: K) -> None:
        """A visit."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """An entry has left by itself: it moved to another tier, or was replaced. Its visits stay counted."""

    @abstractmethod
    def forget(self, key: K) -> None:
        """Nothing may be remembered of the key, whether it is here or not."""

    def remembered(self) -> Iterator[K]:
        """Keys that are not here and yet known by name, in no order; linear in their number."""
        return iter(())

    @abstractmethod
    def park(self, key: K) -> None: ...

    @abstractmethod
    def unpark(self, key: K) -> None: ...

    @abstractmethod
    def evict(self) -> Victim[K] | None:
        """Take out the entry that leaves next, or the part of it; the caller repeats while room is short."""
