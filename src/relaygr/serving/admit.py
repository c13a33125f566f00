"""How many requests may be in progress at once, in all and of one tenant."""

from __future__ import annotations

import asyncio
from types import TracebackType

from relaygr.core.errors import OverloadError
from relaygr.serving.errors import TenantBusyError

_RETRY_MS = 100.0


class Admissions:
    """Counts requests in progress; belongs to one event loop."""

    def __init__(self, limit: int, tenant_limit: int) -> None:
        """`tenant_limit` 0 sets no limit of a tenant's own."""
        self._limit, self._tenant_limit = limit, tenant_limit
        self._count = 0
        self._tenants: dict[str, int] = {}  # of tenants with a request in progress only
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_progress(self) -> int:
        return self._count

    def enter(self, tenant: str) -> Slot:
        """A place for one request, given back at the end of its `with`.

        Raises:
            OverloadError: there is none.
            TenantBusyError: the tenant has all it may have.
        """
        if self._count >= self._limit:
            raise OverloadError(f"{self._limit} requests are in progress, limit {self._limit}", _RETRY_MS)
        mine = self._tenants.get(tenant, 0)
        if self._tenant_limit and mine >= self._tenant_limit:
            raise TenantBusyError(tenant, self._tenant_limit)
        self._count += 1
        self._tenants[tenant] = mine + 1
        self._idle.clear()
        return Slot(self, tenant)

    def leave(self, tenant: str) -> None:
        self._count -= 1
        left = self._tenants[tenant] - 1
        if left:
            self._tenants[tenant] = left
        else:
            del self._tenants[tenant]
        if not self._count:
            self._idle.set()

    async def idle(self, timeout_s: float) -> bool:
        """Wait until nothing is in progress; False if that takes longer."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


class Slot:
    """One request in progress."""

    __slots__ = ("_admissions", "_tenant")

    def __init__(self, admissions: Admissions, tenant: str) -> None:
        self._admissions, self._tenant = admissions, tenant

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admissions.leave(self._tenant)
