"""The shape `gateway`: one `relaygr gateway` in front of replicas."""

from __future__ import annotations

from relaygr.bench.cluster_shape import ServerShape
from relaygr.bench.serve_process import ServerProcess


class GatewayShape(ServerShape):
    """Replicas know nothing of each other."""

    policy = "the gateway asks the user's next choice once a connection fails"

    def front(self) -> None:
        command = ["gateway"]
        for name, url in self.members.items():
            command += ["--member", f"{name}={url}"]
        settings = ("serving.log_level=error", *self.setup.router)
        self._gateway = self.enter(ServerProcess(self.place("gateway"), settings, command=command))

    @property
    def addresses(self) -> list[str]:
        return [self._gateway.url]
