"""String item ids as a side table: one blob of UTF-8 in ascending order, so that a row number is a rank."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from relaygr.core.errors import RequestError
from relaygr.core.ids import MAX_NAME_BYTES, check_name

_PIECE = 8192  # strings that are looked up or hashed at once, which bounds the memory for it


@dataclass(frozen=True, slots=True, eq=False)
class _Hashed:
    """The hash of each string, ascending, and its row: int64 [n], int32 [n]."""

    hashes: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Distinct strings in ascending order of their bytes (which is that of their code points).

    Attributes:
        offsets: int64 [n + 1], where each begins in `blob`.
        blob: uint8 [bytes].
    """

    offsets: npt.NDArray[np.int64]
    blob: npt.NDArray[np.uint8]
    _hashed: list[_Hashed] = field(default_factory=list, repr=False)  # one, after `prepare`

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def at(self, rows: Iterable[int]) -> list[str]:
        """The strings of `rows`."""
        offsets, blob = self.offsets, self.blob
        return [blob[offsets[row] : offsets[row + 1]].tobytes().decode("utf-8") for row in rows]

    def prepare(self) -> None:
        """Make `find` quick for many strings: 12 more bytes each, and some tenths of a second a million.

        Hashes are those of this process; nothing of it is stored.
        """
        if self._hashed or not len(self):
            return
        hashes = np.empty(len(self), np.int64)
        for start in range(0, len(self), _PIECE):
            ends = self.offsets[start : start + _PIECE + 1]
            piece = self.blob[ends[0] : ends[-1]].tobytes()
            places = (ends - ends[0]).tolist()
            raws = (piece[low:high] for low, high in pairwise(places))
            hashes[start : start + len(places) - 1] = _hashes(raws, len(places) - 1)
        rows = np.argsort(hashes, kind="stable").astype(np.int32)
        self._hashed.append(_Hashed(hashes[rows], rows))

    def find(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """The row of each string, -1 for an unknown one. [len(texts)]"""
        found = np.empty(len(texts), np.int64)
        for start in range(0, len(texts), _PIECE):
            # What is no Unicode becomes what no UTF-8 is, and is not found.
            raws = [text.encode("utf-8", "surrogatepass") for text in texts[start : start + _PIECE]]
            rows = self._look_up(raws, self._hashed[0]) if self._hashed else self._search(raws)
            found[start : start + len(raws)] = rows
        return found

    def _look_up(self, raws: list[bytes], hashed: _Hashed) -> npt.NDArray[np.int64]:
        wanted = _hashes(raws, len(raws))
        place = np.minimum(np.searchsorted(hashed.hashes, wanted), len(hashed.hashes) - 1)
        met = np.flatnonzero(hashed.hashes[place] == wanted)
        rows = hashed.rows[place[met]].astype(np.int64)
        same = self._equal(rows, [raws[at] for at in met.tolist()])
        found = np.full(len(raws), -1, np.int64)
        found[met[same]] = rows[same]
        # Another string has this hash: rare, and the string may be there all the same.
        others = met[~same]
        found[others] = self._search([raws[at] for at in others.tolist()])
        return found

    def _equal(self, rows: npt.NDArray[np.int64], raws: list[bytes]) -> npt.NDArray[np.bool_]:
        """Whether the string of each row is the one beside it. [n]"""
        lengths = np.fromiter(map(len, raws), np.int64, len(raws))
        begins = self.offsets[rows]
        same: npt.NDArray[np.bool_] = self.offsets[rows + 1] - begins == lengths
        kept = np.flatnonzero(same)
        begins, lengths = begins[kept], lengths[kept]
        starts = np.cumsum(lengths) - lengths
        # The bytes of all rows one behind the other.
        places = np.arange(int(lengths.sum())) + np.repeat(begins - starts, lengths)
        given = np.frombuffer(b"".join([raws[at] for at in kept.tolist()]), np.uint8)
        wrong = np.flatnonzero(self.blob[places] != given)
        same[kept[np.searchsorted(starts, wrong, side="right") - 1]] = False
        return same

    def _search(self, raws: Sequence[bytes]) -> npt.NDArray[np.int64]:
        # Views of the plain bytes: an element of an array takes ten times as long to get.
        offsets, blob, rows = self.offsets.data, self.blob.data, range(len(self))

        def at(row: int) -> bytes:
            return bytes(blob[offsets[row] : offsets[row + 1]])

        def search_one(raw: bytes) -> int:
            row = bisect_left(rows, raw, key=at)
            return row if row < len(rows) and at(row) == raw else -1

        return np.fromiter(map(search_one, raws), np.int64, len(raws))

    @property
    def nbytes(self) -> int:
        made = sum(one.hashes.nbytes + one.rows.nbytes for one in self._hashed)
        return self.offsets.nbytes + self.blob.nbytes + made


def make_names(texts: Sequence[str]) -> tuple[Names, npt.NDArray[np.int64]]:
    """The table of all distinct strings, and the row of each of `texts`. [n]

    Raises:
        RequestError: a string is empty, too long, holds NUL or is no Unicode; `field` is its index.
    """
    try:
        raws = [text.encode("utf-8") for text in texts]
        lengths = list(map(len, raws))
        sound = min(lengths) > 0 and max(lengths) <= MAX_NAME_BYTES and b"\x00" not in b"".join(raws)
    except (AttributeError, UnicodeEncodeError):
        sound = False
    if not sound:
        _find_bad(texts)
    table = sorted(set(raws))
    rank = {raw: row for row, raw in enumerate(table)}
    offsets = np.zeros(len(table) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, table), np.int64, len(table)), out=offsets[1:])
    blob = np.frombuffer(b"".join(table), np.uint8)
    return Names(offsets, blob), np.fromiter((rank[raw] for raw in raws), np.int64, len(raws))


def _hashes(raws: Iterable[bytes], count: int) -> npt.NDArray[np.int64]:
    return np.fromiter(map(hash, raws), np.int64, count)


def _find_bad(texts: Sequence[str]) -> None:
    for index, text in enumerate(texts):
        try:
            check_name("item_id", text)
        except RequestError as error:
            raise RequestError(str(index), error.reason) from error
