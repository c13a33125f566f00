"""One version of the catalogue, and a pin on it: what a request sees from its admission to its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from relaygr.core.errors import BackendError
from relaygr.generation.catalogue.artefact import Catalogue
from relaygr.generation.catalogue.filters import DenyFilter, Filter, Wanted, make_filter
from relaygr.generation.catalogue.history import CodedHistory, Unknown, code_history
from relaygr.generation.catalogue.index import CatalogueIndex, Int32s, ItemId
from relaygr.generation.catalogue.named import NamedFilters


class CatalogVersion:
    """A catalogue that is or was served. Its arrays never change; after `free` nobody may use them.

    Attributes:
        number: counts the versions of this process, from 1.
        label: names the content, and is what answers report.
    """

    def __init__(self, number: int, catalogue: Catalogue, withdrawn: Int32s) -> None:
        self.number = number
        self.label = catalogue.label
        self.n_items, self.n_sids = catalogue.index.n_items, catalogue.index.n_sids
        self.as_of_s = catalogue.header.as_of_s
        self._catalogue: Catalogue | None = catalogue
        # Belong to `Catalogues`, which changes them under its lock. The filter is that of requests without
        # one of their own, so that what it finds out about withdrawn items is found out once.
        self.pins = 0
        self.default: DenyFilter | None = DenyFilter(catalogue.index, withdrawn)

    @property
    def catalogue(self) -> Catalogue:
        """Raises BackendError once it was freed."""
        if self._catalogue is None:
            raise BackendError(f"catalogue version {self.number} was freed")
        return self._catalogue

    @property
    def freed(self) -> bool:
        return self._catalogue is None

    def free(self) -> None:
        """Let go of the arrays."""
        assert not self.pins
        self._catalogue = self.default = None


class PinnedCatalogue:
    """A counted right to use one version, and the items withdrawn from it at that moment. A context manager.

    The version is not freed before `close`, whatever is loaded meanwhile. Of use to one request.
    """

    def __init__(
        self, version: CatalogVersion, named: NamedFilters, release: Callable[[CatalogVersion], None]
    ) -> None:
        self.version = version
        assert version.default is not None
        self._default: DenyFilter | None = version.default
        self._named, self._release = named, release
        self._open = True

    @property
    def catalogue(self) -> Catalogue:
        """Raises BackendError after `close`."""
        if not self._open:
            raise BackendError(f"a closed pin on catalogue version {self.version.number} is used")
        return self.version.catalogue

    @property
    def index(self) -> CatalogueIndex:
        return self.catalogue.index

    @property
    def label(self) -> str:
        """What the answer reports as its catalogue version."""
        return self.version.label

    @property
    def withdrawn(self) -> Int32s:
        """Positions that are denied to everybody."""
        return self._own().dropped

    def filter(self, wanted: Wanted) -> Filter:
        """The filter of the request, withdrawn items included. Raises as `make_filter`."""
        if not wanted.anything:
            return self._own()
        return make_filter(
            self.index,
            wanted,
            version=self.version.number,
            named=self._named,
            withdrawn=self._own().dropped,
        )

    def history(self, ids: Sequence[ItemId], unknown: Unknown = "reject") -> CodedHistory:
        """The codes of a user's items. Raises as `code_history`."""
        return code_history(self.index, ids, unknown)

    def close(self) -> None:
        """Give the right back; more than once is fine."""
        if self._open:
            self._open = False
            self._default = None
            self._release(self.version)

    def _own(self) -> DenyFilter:
        if self._default is None:
            raise BackendError(f"a closed pin on catalogue version {self.version.number} is used")
        return self._default

    def __enter__(self) -> PinnedCatalogue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
