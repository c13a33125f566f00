"""Several replicas on this machine, deployed in one of the shapes that there are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from relaygr.bench.serve_process import HOST, Listener, ServerProcess, free_port

P = TypeVar("P", bound=Listener)
Reload = Callable[[str, Path], Awaitable[None]]
"""Asks the server at a URL to serve the model in a folder."""

_TTL_S = 2
# A router remembers users for as long as a prefix may live, at least.
FORGETFUL = (f"router.placement_ttl_s={_TTL_S}", f"budgets.t_life_ms={1000 * _TTL_S}")
"""Settings of routers and replicas under which users follow a change of the members soon."""
QUICK = ("router.poll_s=0.1", "router.ramp_s=0", *FORGETFUL)
"""Settings of routers that hear of a change at once."""


def replica_settings(model: Path, threads: int, pool_bytes: int) -> tuple[str, ...]:
    """Of replicas that get every history with the request and compute all prefixes ahead, in float32."""
    return (
        f"serving.model={model}",
        "serving.log_level=error",
        "serving.calibrate_s=0",
        "store.url=sqlite://memory",
        "engine.dtype=fp32",
        f"engine.threads={threads}",
        f"engine.device_bytes={pool_bytes}",
        "trigger.admit_all=true",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a shape is made of.

    Attributes:
        folder: takes logs and settings files.
        settings: of every replica, as section.key=value.
        count: replicas that run from the start; spare: further ones, that `add` starts.
        budget_ms: longest time of a lap.
        router: settings of whatever routes.
    """

    folder: Path
    settings: tuple[str, ...]
    count: int
    budget_ms: float
    spare: int = 1
    router: tuple[str, ...] = QUICK


class Shape(ABC):
    """Replicas, and what is in front of them; a context manager that ends all of them.

    Entering it returns when the whole shape serves; BackendError if something does not start.
    """

    policy: ClassVar[str]
    """What is done about a try that fails, besides the client's own retries."""
    replaces: ClassVar[bool] = False
    """Whether another replica takes the place of one that was killed, without being asked."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._stack = ExitStack()

    @classmethod
    def missing(cls) -> str:
        """Why this machine cannot run it; empty if it can."""
        return ""

    @property
    @abstractmethod
    def addresses(self) -> list[str]:
        """Where clients may send requests, as URLs; may change with kill and add."""

    @property
    @abstractmethod
    def replica_bytes(self) -> int | None:
        """Resident memory of the largest replica; None where the system does not tell."""

    @abstractmethod
    def start(self) -> None:
        """Start everything with `enter`; returns when the whole shape serves."""

    @abstractmethod
    def kill(self) -> None:
        """End a replica without notice."""

    @abstractmethod
    def add(self) -> None:
        """Start a spare replica; returns when it is ready. BackendError if it does not start."""

    @abstractmethod
    async def update(self, model: Path, reload: Reload) -> None:
        """Let every replica have the model in this folder, one after the other."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def place(self, name: str) -> Path:
        """A folder of its own for a process."""
        folder = self.setup.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def enter(self, process: P) -> P:
        """Start a process that ends with the shape."""
        self._stack.enter_context(process)
        return process


class ServerShape(Shape):
    """Replicas that are `relaygr serve`, named r0, r1, ..."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._ports = {f"r{number}": free_port() for number in range(setup.count + setup.spare)}
        self.members = {name: f"http://{HOST}:{port}" for name, port in self._ports.items()}
        self._spare = iter(list(self.members)[setup.count :])
        self._running: dict[str, ServerProcess] = {}

    @abstractmethod
    def front(self) -> None:
        """Start what is in front of the replicas, which run, with `enter`."""

    def replica(self, name: str, port: int) -> ServerProcess:
        """One of them, not started."""
        return ServerProcess(self.place(name), self.setup.settings, port=port)

    @property
    def replica_bytes(self) -> int | None:
        sizes = [one.rss_bytes for one in self._running.values()]
        return max((size for size in sizes if size is not None), default=None)

    @property
    def urls(self) -> list[str]:
        """Of the replicas that run."""
        return [one.url for one in self._running.values()]

    def start(self) -> None:
        names = list(self.members)[: self.setup.count]
        # Side by side: most of a start is imports, on one core.
        with ThreadPoolExecutor() as pool:
            self._running = dict(zip(names, pool.map(self._started, names), strict=True))
        self.front()

    def kill(self) -> None:
        self._running.pop(next(iter(self._running))).kill()

    def add(self) -> None:
        name = next(self._spare)
        self._running[name] = self._started(name)

    async def update(self, model: Path, reload: Reload) -> None:
        for url in self.urls:
            await reload(url, model)

    def _started(self, name: str) -> ServerProcess:
        return self.enter(self.replica(name, self._ports[name]))
