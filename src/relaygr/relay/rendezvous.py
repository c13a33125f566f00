"""Rendezvous hashing: whoever knows the same members names the same owner of a key, and the same next ones.

The scheme is highest random weight (Thaler and Ravishankar, 1998); weights as in Schindelhauer and Schomaker
(2005): a member of twice the weight owns twice the keys, and changing it moves keys only to or from it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Kind = Literal["blake2b", "mix64"]
U64 = npt.NDArray[np.uint64]

_BYTES = 8
_ONE_BY_ONE = 4  # of many members, those that are found without sorting all
_TOP = 1 << 64
# The multipliers of splitmix64's finaliser.
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _12 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(12)


def h64(key: str, member: str) -> int:
    """The first 8 bytes, big endian, of BLAKE2b of the key, a zero byte and the member."""
    return int.from_bytes(
        blake2b(_encoded(key) + b"\0" + _encoded(member), digest_size=_BYTES).digest(), "big"
    )


def score(hashed: int, weight: float) -> float:
    """-weight / ln((hashed + 0.5) / 2^64); the member with the highest score owns the key."""
    if hashed < _TOP // 2:
        return -weight / math.log((hashed + 0.5) / _TOP)
    # Near 1 the quotient itself would round to 1, whose logarithm is 0.
    return -weight / math.log1p(-(_TOP - hashed - 0.5) / _TOP)


class Preference(Protocol):
    """An order of some members for every key; belongs to one thread.

    Attributes:
        ids: the members; positions below are places in it.
    """

    ids: tuple[str, ...]

    def owner(self, key: str) -> int:
        """Position of the first choice."""

    def order(self, key: str) -> Iterator[int]:
        """Positions from the first choice to the last; those after the first are sorted when asked for."""


def preference(kind: Kind, weights: Mapping[str, float]) -> Preference:
    """The order of the members of `weights`, which are positive; there is at least one member."""
    # Where hashes are equal the larger id comes first, which the searches below keep.
    ids = tuple(sorted(weights, reverse=True))
    found = tuple(weights[name] for name in ids)
    equal = all(weight == found[0] for weight in found)
    return (_Blake if kind == "blake2b" else _Mixed)(ids, None if equal else found)


class _Blake:
    """By `h64`, exactly; a member costs half a microsecond."""

    def __init__(self, ids: tuple[str, ...], weights: tuple[float, ...] | None) -> None:
        self.ids, self._weights = ids, weights
        self._names = [_encoded(name) for name in ids]

    def owner(self, key: str) -> int:
        scores = self._scores(key)
        return scores.index(max(scores))

    def order(self, key: str) -> Iterator[int]:
        scores = self._scores(key)
        first = scores.index(max(scores))
        yield first
        ordered = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        yield from (place for place in ordered if place != first)

    def _scores(self, key: str) -> list[Any]:  # all of one kind, which has an order
        start = blake2b(_encoded(key) + b"\0", digest_size=_BYTES)
        digests: list[bytes] = []
        for name in self._names:
            hasher = start.copy()
            hasher.update(name)
            digests.append(hasher.digest())
        if self._weights is None:
            # Big endian: bytes compare as the numbers do.
            return digests
        return [
            (score(int.from_bytes(digest, "big"), weight), digest)
            for digest, weight in zip(digests, self._weights, strict=True)
        ]


class _Mixed:
    """By a 64-bit mix of the key's hash and each member's, all members at once."""

    def __init__(self, ids: tuple[str, ...], weights: tuple[float, ...] | None) -> None:
        self.ids = ids
        self._members = np.array([_member_hash(name) for name in ids], np.uint64)  # [N]
        self._weights = None if weights is None else np.array(weights, np.float64)  # [N]
        self._spare, self._mixed = np.empty_like(self._members), np.empty_like(self._members)
        self._floats = np.empty(len(ids), np.float64)

    def owner(self, key: str) -> int:
        return int(self._scores(key).argmax())

    def order(self, key: str) -> Iterator[int]:
        # The scratch arrays belong to the next call as soon as this one has yielded.
        scores = self._scores(key).copy()
        left, yielded = scores.copy(), []
        # Few are asked for beyond the second; of many members, finding one is much less than sorting all.
        for _ in range(min(_ONE_BY_ONE, len(left))):
            place = int(left.argmax())
            if not left[place]:
                break  # a member's own name as key mixes to 0
            yield place
            yielded.append(place)
            left[place] = 0
        # Ascending and stable over the reversed array, read backwards: equal scores stay in order of place.
        last = len(scores) - 1
        ordered = last - np.argsort(scores[::-1], kind="stable")[::-1]
        yield from (place for place in ordered.tolist() if place not in yielded)

    def _scores(self, key: str) -> U64 | npt.NDArray[np.float64]:
        mixed, spare = self._mixed, self._spare
        np.bitwise_xor(self._members, _key_hash(key), out=mixed)
        _mix(mixed, spare)
        if self._weights is None:
            return mixed
        # 52 bits: with the half they fit a float64, so that the quotient is never 0 or 1.
        np.right_shift(mixed, _12, out=spare)
        floats = self._floats
        np.add(spare, 0.5, out=floats)
        floats *= 2.0**-52
        np.log(floats, out=floats)
        np.divide(self._weights, floats, out=floats)
        return np.negative(floats, out=floats)


def _mix(values: U64, spare: U64) -> None:
    """splitmix64's finaliser, twice, in place: one round leaves a trace of members whose hashes are close."""
    for _ in range(2):
        np.right_shift(values, _30, out=spare)
        np.bitwise_xor(values, spare, out=values)
        np.multiply(values, _FIRST, out=values)
        np.right_shift(values, _27, out=spare)
        np.bitwise_xor(values, spare, out=values)
        np.multiply(values, _SECOND, out=values)
        np.right_shift(values, _31, out=spare)
        np.bitwise_xor(values, spare, out=values)


def _key_hash(key: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(_encoded(key), digest_size=_BYTES).digest(), "big"))


@functools.lru_cache(maxsize=65_536)
def _member_hash(member: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(_encoded(member), digest_size=_BYTES).digest(), "big"))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
