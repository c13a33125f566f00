"""String item ids as a side table: one blob of UTF-8 in ascending order, so that a row number is a rank."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relaygr.core.errors import RequestError
from relaygr.core.ids import check_name


@dataclass(frozen=True, slots=True, eq=False)
class Names(Sequence[bytes]):
    """Distinct strings in ascending order of their bytes (which is that of their code points).

    Attributes:
        offsets: int64 [n + 1], where each begins in `blob`.
        blob: uint8 [bytes].
    """

    offsets: npt.NDArray[np.int64]
    blob: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row):  # type: ignore[no-untyped-def]  # only with whole numbers
        return self.blob[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def at(self, rows: Iterable[int]) -> list[str]:
        """The strings of `rows`."""
        return [self[row].decode("utf-8") for row in rows]

    def find(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """The row of each string, -1 for an unknown one. [len(texts)]"""
        return np.fromiter((self._row(text) for text in texts), np.int64, len(texts))

    def _row(self, text: str) -> int:
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError:
            return -1
        row = bisect_left(self, raw)
        return row if row < len(self) and self[row] == raw else -1

    @property
    def nbytes(self) -> int:
        return self.offsets.nbytes + self.blob.nbytes


def make_names(texts: Sequence[str]) -> tuple[Names, npt.NDArray[np.int64]]:
    """The table of all distinct strings, and the row of each of `texts`. [n]

    Raises:
        RequestError: a string is empty, too long, holds NUL or is no Unicode; `field` is its index.
    """
    raws: list[bytes] = []
    for index, text in enumerate(texts):
        try:
            raws.append(check_name("item_id", text).encode("utf-8"))
        except RequestError as error:
            raise RequestError(str(index), error.reason) from error
    table = sorted(set(raws))
    rank = {raw: row for row, raw in enumerate(table)}
    offsets = np.zeros(len(table) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, table), np.int64, len(table)), out=offsets[1:])
    blob = np.frombuffer(b"".join(table), np.uint8)
    return Names(offsets, blob), np.fromiter((rank[raw] for raw in raws), np.int64, len(raws))
