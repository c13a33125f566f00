"""The shape `peers`: replicas that send requests on to each other, and nothing in front."""

from __future__ import annotations

from relaygr.bench.cluster_shape import ServerShape
from relaygr.bench.serve_process import ServerProcess


class PeersShape(ServerShape):
    """Clients may ask any replica."""

    policy = "a peer asks the user's next choice once a connection fails; nobody stands in for the peer asked"

    def start(self) -> None:
        self._everyone = self.place("members") / "members.toml"
        tables = [f'[[router.members]]\nid = "{name}"\nurl = "{url}"\n' for name, url in self.members.items()]
        self._everyone.write_text("\n".join(tables))
        super().start()

    def front(self) -> None:
        """Nothing is."""

    def replica(self, name: str, port: int) -> ServerProcess:
        settings = (*self.setup.settings, *self.setup.router, f"router.self_id={name}")
        return ServerProcess(self.place(name), settings, self._everyone, port=port)

    @property
    def addresses(self) -> list[str]:
        return self.urls
