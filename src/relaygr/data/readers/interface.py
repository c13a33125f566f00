"""The contract of all readers: from paths to events in arrival order, and a count of what was left out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from relaygr.data.readers.fields import Reason
from relaygr.data.write import EventTable

OnError = Literal["fail", "skip"]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Terms:
    """What the publisher of a data set asks of everyone who uses it; the words are ours, not a legal text.

    Attributes:
        source: what it is, with the citation that is asked for.
        licence: what may be done with it.
    """

    source: str
    licence: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """How many records were left out for one reason."""

    reason: Reason
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Events in the order of the records, users in order of first appearance, and what was left out.

    Attributes:
        source: what was read, in words that a dataset can carry: no path of this machine, but names.
    """

    table: EventTable
    source: str
    skipped: tuple[Skipped, ...]


def ignore(records: int) -> None:
    """The `Progress` of those who do not ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader(ABC):
    """Reads one format; its options are the fields of a frozen dataclass, checked when it is built.

    Reading changes nothing where it reads. It streams: 32 bytes an event and one entry a user are kept, and
    no record is longer than a limit that the format states. The same input and options give the same events.

    Attributes:
        record: what a record of the format is called, in the singular.
        terms: of the publisher, where the format belongs to one data set.
        on_error: "fail" stops at the first bad record; "skip" leaves bad ones out and counts them by reason.
    """

    record: ClassVar[str] = "row"
    terms: ClassVar[Terms | None] = None

    on_error: OnError = "fail"

    @abstractmethod
    def read(self, *paths: Path | str, progress: Progress = ignore) -> Read:
        """Read `paths` one after the other, as if they were one; the result is the caller's to keep.

        Args:
            progress: called with the number of records read, now and then and at the end.

        Raises:
            DataError: with file, line (or number of the record), column and reason. For a bad record unless
                such are skipped, which costs no other record; always for a source that cannot be read to
                its end, for a bad header, and when every record is bad.
            ConfigError: no path is given, or what is needed to read the format is not installed.
        """
