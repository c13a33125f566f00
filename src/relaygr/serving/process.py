"""An application as a process: a socket, a server on it, and an orderly end at SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import uvicorn
import uvloop
from starlette.types import ASGIApp

from relaygr.config.settings import ServingConfig
from relaygr.core.errors import ConfigError
from relaygr.serving.heads import limited

log = logging.getLogger("relaygr.serving")

BACKLOG = 1024
# Beyond the stated time, for what does not let itself be stopped.
_LAST_RESORT_S = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Program(Protocol):
    """What stands behind an application: slow to start, and with work to finish at the end."""

    async def start(self) -> None:
        """Become ready; the application answers before this is done."""

    async def drain(self, timeout_s: float) -> bool:
        """Say that nothing new is welcome, finish what there is, close; whether that was all in time."""


class _Server(uvicorn.Server):
    """Leaves signals to `serve`, which has work to finish first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(app: ASGIApp, program: Program, settings: ServingConfig, announce: Callable[[str], None]) -> bool:
    """Serve until a signal; `announce` is told the URL as soon as it answers, which is before it is ready.

    Returns whether everything that was accepted was finished.

    Raises:
        ConfigError: the address cannot be had.
    """
    with listen(settings) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(app, program, settings, listener, announce))


async def serve(
    app: ASGIApp,
    program: Program,
    settings: ServingConfig,
    listener: socket.socket,
    announce: Callable[[str], None],
) -> bool:
    """`run` on this event loop and this socket."""
    server = _Server(
        uvicorn.Config(
            app,
            http=limited(settings.keep_alive_s, settings.body_timeout_s),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=1,
            backlog=BACKLOG,
        )
    )
    stopping = _on_signals(settings.drain_delay_s + settings.drain_s + _LAST_RESORT_S)
    serving = asyncio.create_task(server.serve([listener]))
    host, port = listener.getsockname()[:2]
    announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    try:
        await _until(stopping, asyncio.create_task(_start(program)))
    finally:
        done = await program.drain(settings.drain_s)
        server.should_exit = True
        await serving
    log.info("stopped" if done else "stopped with requests unfinished")
    return done


async def _start(program: Program) -> None:
    await program.start()
    # What is there now stays; the collector need not look at it in the middle of a request.
    gc.collect()
    gc.freeze()
    log.info("ready")


async def _until(stopping: asyncio.Event, starting: asyncio.Task[None]) -> None:
    """Wait for the signal; an error of the start comes first."""
    signalled = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((signalled, starting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await signalled
    finally:
        signalled.cancel()
        starting.cancel()


def _on_signals(limit_s: float) -> asyncio.Event:
    """Set at the first signal; a second one, or `limit_s` without an end, ends the process as it is."""
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()

    def heard(number: signal.Signals) -> None:
        if stopping.is_set():
            log.warning("%s again: leaving at once", number.name)
            os._exit(1)
        log.info("%s: stopping", number.name)
        stopping.set()
        timer = threading.Timer(limit_s, _leave)
        timer.daemon = True
        timer.start()

    for number in _SIGNALS:
        loop.add_signal_handler(number, heard, number)
    return stopping


def _leave() -> None:
    log.error("the end takes too long: leaving")
    os._exit(1)


def listen(settings: ServingConfig) -> socket.socket:
    """A listening socket, before anything slow; ConfigError if the address cannot be had."""
    host, port = settings.host, settings.port
    if not host:
        raise ConfigError("serving.host", "is empty; 0.0.0.0 listens on every address")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            "serving.host", f"cannot listen on {host}:{port}: {error.strerror or error}"
        ) from error
    listener.setblocking(False)
    return listener
