"""How versions of the catalogue are kept, and what is told about them."""

from __future__ import annotations

from dataclasses import dataclass

from relaygr.core.errors import ConfigError
from relaygr.core.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueSettings:
    """How versions are kept.

    Attributes:
        keep_versions: the serving one and those to go back to.
        min_share: least items and semantic ids of a new version, as a share of the serving one's.
        overlay_limit: most withdrawn items.
        mapped: map arrays of files instead of reading them, see `open_catalogue`.
        filter_bytes: what named filters may remember.
    """

    keep_versions: int = 2
    min_share: float = 0.5
    overlay_limit: int = 10_000
    mapped: bool = False
    filter_bytes: int = 256 * MIB

    def __post_init__(self) -> None:
        if self.keep_versions < 1:
            raise ConfigError("keep_versions", f"{self.keep_versions}, limit at least 1")
        if not 0 <= self.min_share <= 1:
            raise ConfigError("min_share", f"{self.min_share}, limit 0 to 1")
        if self.overlay_limit < 0:
            raise ConfigError("overlay_limit", f"{self.overlay_limit}, limit at least 0")
        if self.filter_bytes < 0:
            raise ConfigError("filter_bytes", f"{self.filter_bytes}, limit at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueStatus:
    """What is served and what became of the last load.

    Attributes:
        serving: its label, None before the first load; number: of the version.
        as_of_s: of its data; since_s: when it began to be served; Unix seconds.
        kept: labels one may go back to, oldest first, the serving one last.
        retired: labels of versions that are only there for the requests that pinned them.
        pins: requests that hold a version.
        withdrawn: items in the overlay.
        loads: versions that were installed; failures: loads that failed.
        error: why the last load failed, None if it did not.
    """

    serving: str | None
    number: int
    as_of_s: float
    since_s: float
    kept: tuple[str, ...]
    retired: tuple[str, ...]
    pins: int
    withdrawn: int
    loads: int
    failures: int
    error: str | None

    def age_s(self, now_s: float) -> float | None:
        """Of the data that serves, at a Unix time; None without a catalogue."""
        return max(now_s - self.as_of_s, 0.0) if self.serving else None
