"""The process: a socket, a server on it, and an orderly end at SIGTERM or SIGINT."""

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

import uvicorn
import uvloop
from starlette.types import ASGIApp

from relaygr.config.settings import Config
from relaygr.core.errors import ConfigError
from relaygr.serving.app import build_app
from relaygr.serving.heads import limited
from relaygr.serving.logs import configure
from relaygr.serving.service import Service
from relaygr.serving.tracing import Tracing

log = logging.getLogger("relaygr.serving")

BACKLOG = 1024
# Beyond the stated time, for what does not let itself be stopped.
_LAST_RESORT_S = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Server(uvicorn.Server):
    """Leaves signals to `serve`, which has work to finish first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(config: Config, announce: Callable[[str], None]) -> bool:
    """Serve until a signal; `announce` is told the URL as soon as it answers, which is before it is ready.

    Returns whether everything that was accepted was finished.

    Raises:
        ConfigError: a setting is wrong, or the address cannot be had.
        BackendError: the store or the model does not work.
    """
    configure(config.serving.log_level, config.serving.log_personal)
    service, tracing = Service(config), Tracing.open(config.serving.traces)
    app = build_app(service, tracing)
    try:
        with _listen(config) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(service, app, listener, announce))
    finally:
        tracing.close()


async def serve(
    service: Service, app: ASGIApp, listener: socket.socket, announce: Callable[[str], None]
) -> bool:
    """`run` on this event loop and this socket."""
    settings = service.config.serving
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
        await _until(stopping, asyncio.create_task(_start(service)))
    finally:
        done = await service.drain(settings.drain_s)
        server.should_exit = True
        await serving
    log.info("stopped" if done else "stopped with requests unfinished")
    return done


async def _start(service: Service) -> None:
    await service.start()
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


def _listen(config: Config) -> socket.socket:
    """A listening socket, before anything slow; ConfigError if the address cannot be had."""
    host, port = config.serving.host, config.serving.port
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
