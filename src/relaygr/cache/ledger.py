"""Who needs each page: at most one visible entry and any number of leases; a page nobody needs is free."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relaygr.cache.pages import PageAllocator, PageIds


class PageLedger:
    """Per-page reference counts over a `PageAllocator`.

    Changes: pages leave the free set only through `take` and come back the moment the last lease and the
    entry have let go, whichever is last.
    "No" is None from `take`, and then nothing changed.
    Raises: unpinning an unpinned page is a broken invariant (AssertionError).
    """

    __slots__ = ("_allocator", "_held", "_pins")

    def __init__(self, pages: int) -> None:
        self._allocator = PageAllocator(pages)
        self._pins = np.zeros(pages, np.int32)
        self._held = np.zeros(pages, np.bool_)

    @property
    def total(self) -> int:
        return self._allocator.total

    @property
    def free_count(self) -> int:
        return self._allocator.free_count

    def take(self, n: int, after: int | None) -> PageIds | None:
        """`n` free pages, each pinned once."""
        pages = self._allocator.take(n, after)
        if not pages:
            return None if pages is None else NO_PAGES
        ids = as_ids(pages)
        self._pins[ids] = 1
        return ids

    def pin(self, ids: PageIds) -> None:
        self._pins[ids] += 1

    def unpin(self, ids: PageIds) -> None:
        pins = self._pins.take(ids)
        assert np.count_nonzero(pins) == len(ids), "unpinned more often than pinned"
        pins -= 1
        self._pins[ids] = pins
        self._free_unneeded(ids, pins)

    def is_pinned(self, page: int) -> bool:
        return bool(self._pins[page])

    def any_pinned(self, ids: PageIds) -> bool:
        return bool(np.count_nonzero(self._pins.take(ids)))

    def drop(self, held: PageIds) -> None:
        """An entry lets go of its pages."""
        self._held[held] = False
        self._free_unneeded(held, self._pins.take(held))

    def replace(self, old: PageIds, new: PageIds) -> None:
        """The visible entry holds `new` in place of `old`; of these, what nobody needs goes back."""
        if len(old):
            self._held[old] = False
        if len(new):
            self._held[new] = True
        if len(old):
            self._free_unneeded(old, self._pins.take(old))

    def audit(self) -> None:
        """Check from scratch that exactly the pages nobody needs are free; linear in pages, for tests."""
        needed = self._held | (self._pins > 0)
        assert (self._pins >= 0).all(), "negative pin count"
        assert int((~needed).sum()) == self.free_count, "free pages and needed pages do not add up"
        assert all(self._allocator.is_free(int(page)) for page in np.flatnonzero(~needed)), "lost page"

    def _free_unneeded(self, ids: PageIds, pins: npt.NDArray[np.int32]) -> None:
        """Give back those of `ids` that nobody needs; `pins` are theirs."""
        needed = np.logical_or(pins, self._held.take(ids))
        if np.count_nonzero(needed) < len(ids):
            self._allocator.free(ids[~needed])


def as_ids(pages: tuple[int, ...]) -> PageIds:
    return np.array(pages, np.intp)


NO_PAGES = as_ids(())
