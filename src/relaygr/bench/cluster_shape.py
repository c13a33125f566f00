"""Several servers on this machine behind one of the shapes in which they are deployed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from relaygr.bench.serve_process import HOST, READY_S, ServerProcess, free_port
from relaygr.core.errors import ConfigError

_TTL_S = 2
# A router remembers users for as long as a prefix may live, at least.
FORGETFUL = (f"router.placement_ttl_s={_TTL_S}", f"budgets.t_life_ms={1000 * _TTL_S}")
"""Settings of routers and replicas under which users follow a change of the members soon."""


class Shape(ABC):
    """Replicas, and what is in front of them; a context manager that ends all of them.

    Members are named r0, r1, ...; `most` of them are known from the start, of which `count` run.

    Attributes:
        apart: replicas know nothing of each other: what is asked of one is served there.
    """

    apart = False

    def __init__(self, folder: Path, settings: Sequence[str], count: int, most: int) -> None:
        if not 1 <= count <= most:
            raise ConfigError("--replicas", f"{count} is outside [1, {most}]")
        self.folder, self.settings = folder, tuple(settings)
        self.ports = {f"r{number}": free_port() for number in range(most)}
        self.replicas: dict[str, ServerProcess] = {}
        self._count = count
        self._stack = ExitStack()

    @property
    @abstractmethod
    def addresses(self) -> list[str]:
        """Where clients may send requests, as URLs; changes with kill and add."""

    def config(self, name: str) -> Path | None:
        """A replica's settings file."""
        return None

    @abstractmethod
    def front(self) -> None:
        """Start what is in front of the replicas, which run."""

    def __enter__(self) -> Self:
        try:
            for name in list(self.ports)[: self._count]:
                self.add(name)
            self.front()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add(self, name: str) -> None:
        """Start a member that does not run; returns when it is ready. BackendError if it does not start."""
        process = self.start(name, ("serve",), self.settings, self.config(name), self.ports[name])
        self.replicas[name] = process

    def kill(self, name: str) -> None:
        """End a replica without notice."""
        self.replicas.pop(name).kill()

    def update(self, model: Path) -> bool:
        """Let all replicas have another model; False where each is to be told so by itself."""
        return False

    def start(
        self,
        name: str,
        command: Sequence[str],
        settings: Sequence[str],
        config: Path | None,
        port: int,
        ready_s: float = READY_S,
    ) -> ServerProcess:
        place = self.folder / name
        place.mkdir(parents=True, exist_ok=True)
        return self._stack.enter_context(ServerProcess(place, settings, config, command, port, ready_s))

    def members(self) -> list[tuple[str, str]]:
        return [(name, f"http://{HOST}:{port}") for name, port in self.ports.items()]


class GatewayShape(Shape):
    """One `relaygr gateway` in front."""

    apart = True

    def front(self) -> None:
        named = [part for name, url in self.members() for part in ("--member", f"{name}={url}")]
        settings = ("serving.log_level=error", "router.poll_s=0.1", "router.ramp_s=0", *FORGETFUL)
        self._gateway = self.start("gateway", ("gateway", *named), settings, None, 0)

    @property
    def addresses(self) -> list[str]:
        return [self._gateway.url]


class PeersShape(Shape):
    """Replicas that send requests on to each other; clients may ask any of them."""

    def front(self) -> None:
        """Nothing is."""

    def config(self, name: str) -> Path:
        lines = ["[router]", f'self_id = "{name}"', "poll_s = 0.1", "ramp_s = 0"]
        for member, url in self.members():
            lines += ["", "[[router.members]]", f'id = "{member}"', f'url = "{url}"']
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    @property
    def addresses(self) -> list[str]:
        return [one.url for one in self.replicas.values()]
