"""What the books of the disk tier keep: records, the files they lie in, and who was forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from relaygr.cache.entry import Identity
from relaygr.cache.interface import PageSum
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Ref

Owner = tuple[Tenant, UserId]

_ENTRY_BYTES = 1024  # of memory, beside content and digests


class Place(NamedTuple):
    """Bytes [offset, offset + nbytes) of a segment."""

    segment: int
    offset: int
    nbytes: int


@dataclass(slots=True, eq=False)
class DiskEntry:
    """One record: a version of a user's state, from token 0 on; nothing of its content ever changes.

    Attributes:
        number: of the record; later records have larger ones.
        sums: checksums of pages, taken when the state left the device.
        visible: whether `DiskBooks` still has it.
    """

    ref: Ref
    place: Place
    number: int
    layout_id: str
    sums: tuple[PageSum, ...] = field(repr=False)
    visible: bool = field(default=False, init=False)

    @property
    def tokens(self) -> int:
        return self.ref.tokens

    @property
    def index_bytes(self) -> int:
        ref = self.ref
        pages = 40 * len(ref.digests) + 32 * len(ref.page_ends) + 80 * len(self.sums)
        return _ENTRY_BYTES + ref.records.nbytes + pages


@dataclass(slots=True, eq=False)
class Segment:
    """One file.

    Attributes:
        used: bytes written or promised; live: of them, those of entries that can be found.
        pins: readers and writers; it stays until they have ended.
        last_use: when one of its entries was used, on the books' own counter.
        keys: of its entries that can be found.
        owners: of its records, dead ones included, but for those buried since.
        buried: owners who were forgotten, by the number below which their records are dead.
        lost: whether its file is gone already; what is still being written there is of no use.
    """

    number: int
    used: int = 0
    live: int = 0
    pins: int = 0
    last_use: int = 0
    keys: set[Identity] = field(default_factory=set)
    owners: set[Owner] = field(default_factory=set)
    buried: dict[Owner, int] = field(default_factory=dict)
    lost: bool = False


class Burial(NamedTuple):
    """Records of `owner` below `number` are dead for ever; they lie in `segments`."""

    owner: Owner
    number: int
    segments: tuple[int, ...]


class Burials(Protocol):
    """Who was forgotten by earlier processes."""

    @property
    def latest(self) -> int:
        """The largest number of a burial; 0 without any."""
        ...

    def of(self, owner: Owner) -> int:
        """The number below which the owner's records are dead; 0 if there are none such."""
        ...


class FoundSegment(NamedTuple):
    """A file of an earlier process, and what of it is whole."""

    number: int
    nbytes: int
    entries: tuple[DiskEntry, ...]
