"""Who needs each page: at most one visible entry and any number of leases; a page nobody needs is free."""

from __future__ import annotations

import numpy as np

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

    def take(self, n: int, after: int | None) -> tuple[int, ...] | None:
        """`n` free pages, each pinned once."""
        pages = self._allocator.take(n, after)
        if pages:
            self._pins[as_ids(pages)] = 1
        return pages

    def pin(self, ids: PageIds) -> None:
        self._pins[ids] += 1

    def unpin(self, ids: PageIds) -> None:
        pins = self._pins[ids]
        assert pins.all(), "unpinned more often than pinned"
        pins -= 1
        self._pins[ids] = pins
        self._allocator.free(ids[(pins == 0) & ~self._held[ids]])

    def is_pinned(self, page: int) -> bool:
        return bool(self._pins[page])

    def any_pinned(self, ids: PageIds) -> bool:
        return bool(self._pins[ids].any())

    def drop(self, held: PageIds) -> None:
        """An entry lets go of its pages."""
        self._held[held] = False
        self._free_unneeded(held)

    def replace(self, old: PageIds | None, new: PageIds) -> None:
        """The visible entry now holds `new`; what only the old version held goes back."""
        if old is not None:
            self._held[old] = False
        self._held[new] = True
        if old is not None:
            self._free_unneeded(old)

    def audit(self) -> None:
        """Check from scratch that exactly the pages nobody needs are free; linear in pages, for tests."""
        needed = self._held | (self._pins > 0)
        assert (self._pins >= 0).all(), "negative pin count"
        assert int((~needed).sum()) == self.free_count, "free pages and needed pages do not add up"
        assert all(self._allocator.is_free(int(page)) for page in np.flatnonzero(~needed)), "lost page"

    def _free_unneeded(self, ids: PageIds) -> None:
        self._allocator.free(ids[(self._pins[ids] == 0) & ~self._held[ids]])


def as_ids(pages: tuple[int, ...]) -> PageIds:
    return np.array(pages, np.intp)
