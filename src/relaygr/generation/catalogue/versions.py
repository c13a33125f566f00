"""Which catalogue is served: load beside the serving one, swap one reference, go back with one call.

Requests pin a version and keep it; a version is freed when it is neither among the kept ones nor pinned.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relaygr.core.errors import RelayError
from relaygr.generation.catalogue.artefact import Catalogue, open_catalogue
from relaygr.generation.catalogue.errors import LoadError, UnavailableError
from relaygr.generation.catalogue.filters import DenyFilter
from relaygr.generation.catalogue.index import ItemId
from relaygr.generation.catalogue.named import NamedFilters
from relaygr.generation.catalogue.overlay import Overlay
from relaygr.generation.catalogue.pinned import CatalogVersion, PinnedCatalogue
from relaygr.generation.catalogue.settings import CatalogueSettings, CatalogueStatus

# Raises CatalogueError, or any other RelayError, when a catalogue must not be served.
Check = Callable[[Catalogue], None]
# Clocks of two machines differ; data from further in the future would silence withdrawals.
_CLOCK_SLACK_S = 300.0


@dataclass(slots=True)
class _Tally:
    loads: int = 0
    failures: int = 0
    error: str | None = None
    since_s: float = 0.0
    retired: list[CatalogVersion] = field(default_factory=list)


class Catalogues:
    """All versions of one catalogue. Thread-safe; `pin` never waits for a load.

    Args:
        settings: see there.
        checks: whether a catalogue fits the model; they run in order on every load, before it is served.
        named: filters that requests may name beside the catalogues' own flags.
        now_s: Unix seconds.
    """

    def __init__(
        self,
        settings: CatalogueSettings | None = None,
        *,
        checks: Sequence[Check] = (),
        named: NamedFilters | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings or CatalogueSettings()
        self.named = named if named is not None else NamedFilters(self.settings.filter_bytes)
        self._checks, self._now_s = tuple(checks), now_s
        # Taken in this order. `_loading` is held for a whole load, `_changing` while what is served or
        # withdrawn changes, `_lock` for a few assignments; a request takes only the last.
        self._loading, self._changing, self._lock = threading.Lock(), threading.Lock(), threading.Lock()
        self._kept: list[CatalogVersion] = []  # the serving one last
        self._overlay = Overlay(self.settings.overlay_limit)
        self._tally = _Tally()
        self._numbers = 0

    def pin(self) -> PinnedCatalogue:
        """A right to use the serving version; must be closed.

        Raises:
            UnavailableError: nothing was loaded yet.
        """
        with self._lock:
            if not self._kept:
                raise UnavailableError("no catalogue is loaded")
            version = self._kept[-1]
            version.pins += 1
            return PinnedCatalogue(version, self.named, self._release)

    def load(self, folder: Path | str, *, allow_shrink: bool = False) -> CatalogVersion:
        """Open, verify and check the catalogue in `folder`, then serve it. Call it off the serving path.

        The very catalogue that is being served is not loaded again.

        Raises:
            RelayError: why it is not served; the old one goes on, and `status` tells the error.
        """
        return self._attempt(lambda: open_catalogue(folder, mapped=self.settings.mapped), allow_shrink)

    def install(self, catalogue: Catalogue, *, allow_shrink: bool = False) -> CatalogVersion:
        """As `load`, for a catalogue in memory."""
        return self._attempt(lambda: catalogue, allow_shrink)

    def rollback(self) -> CatalogVersion:
        """Serve the version before this one again; this one goes when nobody pins it any more.

        Raises:
            UnavailableError: there is no version before it.
        """
        with self._changing:
            with self._lock:
                if len(self._kept) < 2:
                    raise UnavailableError(f"there is no version to go back to: {len(self._kept)} kept")
                self._tally.retired.append(self._kept.pop())
                self._tally.since_s = self._now_s()
                gone = self._free()
                serving = self._kept[-1]
            self._forget(gone)
            return serving

    def withdraw(self, ids: Sequence[ItemId]) -> None:
        """Deny items to all requests that pin a version from now on, until a build knows of it.

        A build knows of it if its data (`as_of_s`) is newer than this call.

        Raises:
            UnavailableError: nothing is served.
            RequestError: an id of another kind than the catalogue's, or too many; nothing is withdrawn.
        """
        with self._changing:
            with self._lock:
                if not self._kept:
                    raise UnavailableError("no catalogue is loaded")
                serving = self._kept[-1]
            serving.catalogue.index.internal("items", ids)
            self._overlay.withdraw(ids, self._now_s())
            self._publish()

    def restore(self, ids: Sequence[ItemId]) -> int:
        """Take withdrawals back; how many of `ids` were withdrawn."""
        with self._changing:
            found = self._overlay.restore(ids)
            self._publish()
            return found

    def status(self) -> CatalogueStatus:
        with self._lock:
            serving = self._kept[-1] if self._kept else None
            tally = self._tally
            return CatalogueStatus(
                serving=serving.label if serving else None,
                number=serving.number if serving else 0,
                as_of_s=serving.as_of_s if serving else 0.0,
                since_s=tally.since_s,
                kept=tuple(one.label for one in self._kept),
                retired=tuple(one.label for one in tally.retired),
                pins=sum(one.pins for one in (*self._kept, *tally.retired)),
                withdrawn=len(self._overlay),
                loads=tally.loads,
                failures=tally.failures,
                error=tally.error,
            )

    def _attempt(self, find: Callable[[], Catalogue], allow_shrink: bool) -> CatalogVersion:
        with self._loading:
            try:
                return self._install(find(), allow_shrink)
            # A check may be anybody's code. Whatever it raises is a failed load, and told as one.
            except Exception as error:
                known = isinstance(error, RelayError)
                with self._lock:
                    self._tally.failures += 1
                    self._tally.error = str(error) if known else f"{type(error).__name__}: {error}"
                raise

    def _install(self, catalogue: Catalogue, allow_shrink: bool) -> CatalogVersion:
        with self._lock:
            serving = self._kept[-1] if self._kept else None
        if serving is not None and serving.catalogue.header.digest == catalogue.header.digest:
            with self._lock:
                self._tally.error = None
            return serving
        ahead_s = catalogue.header.as_of_s - self._now_s()
        if not ahead_s <= _CLOCK_SLACK_S:
            raise LoadError(f"its data is {ahead_s:.0f} s in the future, limit {_CLOCK_SLACK_S:.0f} s")
        if serving is not None and not allow_shrink:
            self._guard(catalogue, serving)
        for check in self._checks:
            check(catalogue)
        if catalogue.index.names is not None:
            catalogue.index.names.prepare()
        with self._changing:
            self._numbers += 1
            withdrawn = self._overlay.positions(catalogue.index, catalogue.header.as_of_s)
            version = CatalogVersion(self._numbers, catalogue, withdrawn)
            with self._lock:
                self._kept.append(version)
                while len(self._kept) > self.settings.keep_versions:
                    self._tally.retired.append(self._kept.pop(0))
                gone = self._free()
                self._tally.loads += 1
                self._tally.error, self._tally.since_s = None, self._now_s()
            self._overlay.prune(min(one.as_of_s for one in self._kept))
            self._forget(gone)
        return version

    def _guard(self, catalogue: Catalogue, serving: CatalogVersion) -> None:
        share = self.settings.min_share
        for what, new, old in (
            ("items", catalogue.index.n_items, serving.n_items),
            ("semantic ids", catalogue.index.n_sids, serving.n_sids),
        ):
            if new < share * old:
                raise LoadError(f"{new} {what}, limit {share:g} of the serving version's {old}")

    def _publish(self) -> None:
        """Let all kept versions know what is withdrawn. Requests that are under way keep what they saw."""
        for version in self._kept:
            withdrawn = self._overlay.positions(version.catalogue.index, version.as_of_s)
            with self._lock:
                version.default = DenyFilter(version.catalogue.index, withdrawn)

    def _release(self, version: CatalogVersion) -> None:
        with self._lock:
            version.pins -= 1
            gone = self._free()
        self._forget(gone)

    def _free(self) -> list[CatalogVersion]:
        """Free the versions that nobody needs; under `_lock`."""
        gone = [one for one in self._tally.retired if not one.pins]
        self._tally.retired = [one for one in self._tally.retired if one.pins]
        for one in gone:
            one.free()
        return gone

    def _forget(self, gone: Sequence[CatalogVersion]) -> None:
        for one in gone:
            self.named.forget_version(one.number)
