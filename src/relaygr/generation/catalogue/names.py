"""String item ids as a side table: one blob of UTF-8 in ascending order, so that a row number is a rank."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relaygr.core.errors import RequestError
from relaygr.core.ids import MAX_NAME_BYTES, check_name


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Distinct strings in ascending order of their bytes (which is that of their code points).

    Attributes:
        offsets: int64 [n + 1], where each begins in `blob`.
        blob: uint8 [bytes].
    """

    offsets: npt.NDArray[np.int64]
    blob: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def at(self, rows: Iterable[int]) -> list[str]:
        """The strings of `rows`."""
        offsets, blob = self.offsets, self.blob
        return [blob[offsets[row] : offsets[row + 1]].tobytes().decode("utf-8") for row in rows]

    def find(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """The row of each string, -1 for an unknown one. [len(texts)]"""
        # Views of the plain bytes: an element of an array takes ten times as long to get.
        offsets, blob, rows = self.offsets.data, self.blob.data, range(len(self))

        def at(row: int) -> bytes:
            return bytes(blob[offsets[row] : offsets[row + 1]])

        def find_one(text: str) -> int:
            try:
                raw = text.encode("utf-8")
            except UnicodeEncodeError:
                return -1
            row = bisect_left(rows, raw, key=at)
            return row if row < len(rows) and at(row) == raw else -1

        return np.fromiter(map(find_one, texts), np.int64, len(texts))

    @property
    def nbytes(self) -> int:
        return self.offsets.nbytes + self.blob.nbytes


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


def _find_bad(texts: Sequence[str]) -> None:
    for index, text in enumerate(texts):
        try:
            check_name("item_id", text)
        except RequestError as error:
            raise RequestError(str(index), error.reason) from error
