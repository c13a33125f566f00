"""The servers of a relay benchmark: one set of settings a variant, and processes that are started once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from relaygr.bench.relay_script import Limits
from relaygr.bench.relay_wire import Door
from relaygr.bench.serve_process import HOST, ServerProcess
from relaygr.config.load import load_config
from relaygr.config.settings import Config
from relaygr.relay.budgets import Budgets
from relaygr.sim.variants import Variant

_CONNECTIONS = 32


@dataclass(frozen=True, slots=True)
class Site:
    """What all servers of a benchmark have in common.

    Attributes:
        folder: takes their logs; the model is in `folder / "model"`.
        settings: of every server, as `section.key=value`; the user's own come last and win.
    """

    folder: Path
    settings: tuple[str, ...]
    own: tuple[str, ...] = ()

    def of(self, variant: Variant) -> tuple[str, ...]:
        """The settings of a variant's servers."""
        return (*self.settings, *variant_settings(variant), *self.own)

    def config(self, variant: Variant) -> Config:
        """The same as one value, for the simulator."""
        return load_config(overrides=self.of(variant))


def site_settings(folder: Path, calibration: Path, dtype: str, device_bytes: int) -> tuple[str, ...]:
    """Of every server, whatever it measures."""
    return (
        f"serving.model={folder / 'model'}",
        "serving.log_level=error",
        "serving.users_bytes=16GiB",
        f"serving.calibration={calibration}",
        "serving.keep_alive_s=86400",
        "store.url=sqlite://memory",
        f"engine.dtype={dtype}",
        f"engine.device_bytes={device_bytes}",
    )


def budget_settings(limits: Limits, budgets: Budgets) -> tuple[str, ...]:
    """Every budget by its milliseconds: a noisy calibration of a server does not move them."""
    named = msgspec.structs.asdict(limits) | {
        name: getattr(budgets, name)
        for name in Budgets.__slots__
        if name not in ("b_rank_ms", "b_pipe_ms", "rank_wait_cap_ms")
    }
    return tuple(f"budgets.{name}={value:.4f}" for name, value in named.items() if name != "tau_ms")


def variant_settings(variant: Variant) -> tuple[str, ...]:
    """What makes a server serve as `variant` says; affinity is the client's."""
    found = []
    if not variant.relay:
        found.append("relay.enabled=false")
    if not variant.reuse:
        found.append("relay.reuse=false")
    if not variant.ladder:
        found.append("relay.fallback_mode=full")
    if not variant.host:
        found.append("host.host_bytes=0")
    if variant.admit_all:
        found.append("trigger.admit_all=true")
    return tuple(found)


class Servers:
    """Processes by their settings, started when first asked for; `async with` ends all of them.

    Only one set of them is loaded at a time; the others cost nothing but memory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self._doors: dict[tuple[tuple[str, ...], int], tuple[Door, ...]] = {}
        self._processes: list[ServerProcess] = []

    async def __aenter__(self) -> Servers:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def doors(self, settings: Sequence[str], count: int = 1) -> tuple[Door, ...]:
        """Connections to `count` servers with these settings.

        Raises:
            BackendError: a server does not start.
        """
        key = (tuple(settings), count)
        if key not in self._doors:
            self._doors[key] = tuple([await self._start(key[0]) for _ in range(count)])
        return self._doors[key]

    def check(self) -> None:
        """BackendError, with the end of its log, if one has ended."""
        for process in self._processes:
            process.check()

    async def _start(self, settings: tuple[str, ...]) -> Door:
        place = self._folder / f"server-{len(self._processes)}"
        place.mkdir(parents=True)
        process = ServerProcess(place, settings)
        # It waits for the server without a loop; nothing else is on its way here.
        await asyncio.to_thread(self._stack.enter_context, process)
        self._processes.append(process)
        return await self._stack.enter_async_context(Door(HOST, process.port, _CONNECTIONS))
