"""`relaygr serve`: the service behind its application, as a process."""

from __future__ import annotations

from collections.abc import Callable

from relaygr.config.settings import Config
from relaygr.serving import process
from relaygr.serving.app import build_app
from relaygr.serving.logs import configure
from relaygr.serving.peers import Peers, with_peers
from relaygr.serving.service import Service
from relaygr.serving.stream.program import Consuming
from relaygr.serving.stream.sinks import Routed, Sink
from relaygr.serving.tracing import Tracing


def run(config: Config, announce: Callable[[str], None]) -> bool:
    """Serve until a signal; `announce` is told the URL as soon as it answers, which is before it is ready.

    Returns whether everything that was accepted was finished.

    Raises:
        ConfigError: a setting is wrong, or the address cannot be had.
        BackendError: the store or the model does not work.
    """
    configure(config.serving.log_level, config.serving.log_personal)
    service, tracing = Service(config), Tracing.open(config.serving.traces)
    app, program = with_peers(build_app(service, tracing), service, config, service.metrics.registry)
    if config.stream.url:
        program = consuming(program, service)
    try:
        return process.run(app, program, config.serving, announce)
    finally:
        tracing.close()


def consuming(program: process.Program, service: Service) -> Consuming:
    """With peers, events go to whom they belong to."""
    config = service.config
    sink: Sink = service
    if isinstance(program, Peers):
        sink = Routed(program.forwarder, config.serving.keys, sink, config.scheduler.deadline_max_ms / 1000)
    found = Consuming(program, config, sink, service.metrics.registry)
    service.stream = found.counts.status
    return found
