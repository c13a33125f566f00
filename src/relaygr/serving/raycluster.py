"""The Ray Serve shape: a thin ingress, rankers behind it, each call to the one that the ingress chose.

All of Ray is here. Serve carries the class of the request router to other processes by value, with what this
module holds; what it shares with the ingress is therefore in `roster`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import ray
from ray import serve
from ray.exceptions import ActorDiedError, RayActorError, RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import Response

from relaygr.core.errors import ConfigError, RelayError
from relaygr.serving.crew import Crew
from relaygr.serving.front.ray import drain_s, settings_of
from relaygr.serving.ingress import Ingress
from relaygr.serving.links import Answer, AwayError, Letter, Pairs, Transport
from relaygr.serving.logs import configure
from relaygr.serving.roster import Ticket, WithdrawnError, the_roster

if TYPE_CHECKING:
    from relaygr.serving.inside import Inside
    from relaygr.serving.service import Service

log = logging.getLogger("relaygr.serving")

_REQUEST_ID = b"x-request-id"


class OwnerRouter(RequestRouter):
    """Gives each call to the one replica that its ticket names, or to nobody.

    Serve's own search is made for calls that anyone may serve. Its tasks look for a call's replica until
    there is one, a task that is one too many drops the call that it has, and one without a call goes on
    without letting others run: with one choice only, calls wait for ever. So each is decided here, once.
    """

    def initialize_state(self, drain_s: float) -> None:
        """`drain_s` is how long a replica that stops, or changes its model, still gets calls of its users."""
        self._drain_s = drain_s
        self._given: dict[ReplicaID, RunningReplica] = {}
        self._leaving: dict[ReplicaID, tuple[RunningReplica, float]] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        now_s = time.monotonic()
        given = {one.replica_id: one for one in replicas}
        for name, one in self._given.items():
            if name not in given and name in self.curr_replicas:
                self._leaving[name] = one, now_s + self._drain_s
        self._given = given
        self._leaving = {
            name: (one, end_s)
            for name, (one, end_s) in self._leaving.items()
            if name not in given and now_s < end_s
        }
        super().update_replicas([*replicas, *(one for one, _ in self._leaving.values())])
        the_roster().update(frozenset(name.unique_id for name in given))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._leaving.pop(replica_id, None)
        the_roster().die(replica_id.unique_id)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One level with one replica; none for a call that is closed, or whose replica is gone."""
        ticket = None if pending_request is None else the_roster().ticket(pending_request.args[0])
        if ticket is None:
            return []
        return [[one] for one in candidate_replicas if one.replica_id.unique_id == ticket.wanted]

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        """In place of Serve's tasks and queues.

        Raises:
            WithdrawnError: the replica is gone; or, in a retry, it has rejected the call or was not reached.
        """
        ranks = await self.choose_replicas(list(self.curr_replicas.values()), pending_request)
        if not ranks:
            raise WithdrawnError("gone")
        [found] = ranks[0]
        if is_retry:
            length = self.replica_queue_len_cache.get(found.replica_id)
            full = length is not None and length >= found.max_ongoing_requests
            raise WithdrawnError("full" if full else "out of reach", full=full)
        ticket = the_roster().ticket(pending_request.args[0])
        if ticket is not None:
            ticket.offered = True
        return found

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        ticket = the_roster().ticket(pending_request.args[0])
        if ticket is None:
            result.cancel()
        else:
            ticket.taken = result.cancel


class Calls(Transport):
    """The way to rankers through a handle."""

    def __init__(self, handle: DeploymentHandle, take_s: float) -> None:
        """`take_s` is the longest wait until a ranker has accepted a call."""
        self._handle, self._take_s = handle, take_s
        self._roster = the_roster()

    def open(self) -> None:
        """Let Serve tell who there is: it does so from the first use of the handle."""
        self._ask = self._handle.options(method_name="ask")

    async def close(self) -> None:
        """Serve ends with the process."""

    async def send(
        self,
        member: str,
        url: str,
        sent: Letter,
        more: Mapping[str, str] = {},
        timeout_s: float | None = None,
    ) -> Answer:
        number, ticket = self._roster.open(member)
        try:
            return Answer(*await self._call(number, ticket, sent, more, timeout_s))
        except TimeoutError as error:
            raise _away(ticket, "no answer in time", sent=ticket.offered) from error
        except ActorDiedError as error:
            raise _away(ticket, "its process has ended", sent=True, refused=True) from error
        except RayActorError as error:
            raise _away(ticket, "its process cannot be reached", sent=True) from error
        except WithdrawnError as error:
            reached = ticket.offered and not error.full
            raise _away(ticket, str(error), sent=reached, busy=error.full) from error
        except DeploymentUnavailableError as error:
            raise _away(ticket, "Ray could not deploy the rankers", sent=False) from error
        except (RayError, RayServeException) as error:
            raise _away(ticket, f"{type(error).__name__}: {error}"[:500], sent=True) from error
        finally:
            self._roster.close(number)

    async def _call(
        self, number: int, ticket: Ticket, sent: Letter, more: Mapping[str, str], timeout_s: float | None
    ) -> tuple[int, Pairs, bytes]:
        headers = [(name.lower().encode(), value.encode()) for name, value in sent.headers.items()]
        headers += [(name.encode(), value.encode()) for name, value in more.items()]
        try:
            async with asyncio.timeout(timeout_s) as limit:
                late = asyncio.get_running_loop().call_later(self._take_s, _stop_unless_taken, ticket, limit)
                try:
                    found: tuple[int, Pairs, bytes] = await self._ask.remote(
                        number, sent.method, sent.target, headers, sent.body
                    )
                    return found
                finally:
                    late.cancel()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._give_up(ticket)
                raise
            # Not this task was cancelled, but the call on the ranker's side.
            raise _away(ticket, "it gave the request up", sent=True) from None
        except TimeoutError:
            self._give_up(ticket)
            raise

    def _give_up(self, ticket: Ticket) -> None:
        """Let the ranker hear of it. `DeploymentResponse.cancel` would wait for the router's thread here."""
        if ticket.taken is not None:
            ticket.taken()


def _stop_unless_taken(ticket: Ticket, limit: asyncio.Timeout) -> None:
    if ticket.taken is None:
        # The answer may have come in the same turn.
        with contextlib.suppress(RuntimeError):
            limit.reschedule(0.0)


def _away(ticket: Ticket, reason: str, *, sent: bool, refused: bool = False, busy: bool = False) -> AwayError:
    return AwayError(ticket.wanted, reason, refused=refused, sent=sent, busy=busy)


class Ranker:
    """A service in a replica, asked through `ask`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._config = settings_of(settings, os.environ)
        self._service: Service | None = None
        self._inside: Inside | None = None

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Start with the model that is named, or change to it; one that cannot be served changes nothing."""
        model = str(user_config.get("model", ""))
        if self._service is None:
            await self._start(model)
        elif model != self._service.served.path:
            try:
                await self._service.reload(model)
            except RelayError:
                # Raised, it would make Serve end this replica, which serves.
                log.exception("model %r cannot be served; %s goes on", model, self._service.served.model)

    async def _start(self, model: str) -> None:
        # Here, so that the ingress does not load torch.
        from relaygr.serving.app import build_app
        from relaygr.serving.inside import Inside
        from relaygr.serving.service import Service
        from relaygr.serving.tracing import Tracing

        serving = self._config.serving
        configure(serving.log_level, serving.log_personal)
        config = msgspec.structs.replace(self._config, serving=msgspec.structs.replace(serving, model=model))
        service = Service(config)
        self._tracing = Tracing.open(serving.traces)
        self._inside = Inside(build_app(service, self._tracing))
        await service.start()
        self._service = service

    async def ask(
        self, number: int, method: str, target: str, headers: Pairs, body: bytes
    ) -> tuple[int, Pairs, bytes]:
        """The answer of the service: status, headers and body; `number` is the ingress's own."""
        assert self._inside is not None
        found = await self._inside.ask(method, target, headers, body)
        return found.status, found.headers, found.body

    async def __del__(self) -> None:
        """Serve waits for this."""
        if self._service is not None:
            await self._service.drain(self._config.serving.drain_s)
            self._tracing.close()


class Front:
    """The ingress in a replica."""

    def __init__(self, settings: dict[str, Any], rankers: DeploymentHandle) -> None:
        self._config, self._rankers = settings_of(settings, os.environ), rankers
        self._ingress: Ingress | None = None

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Called once before the first request; there is nothing to change later."""
        if self._ingress is not None:
            return
        configure(self._config.serving.log_level, self._config.serving.log_personal)
        take_s = self._config.ray.take_ms / 1000
        crew = Crew(self._config, the_roster(), Calls(self._rankers, take_s))
        ingress = Ingress(self._config, crew, serve.get_replica_context().replica_id.unique_id)
        await ingress.start()
        self._ingress = ingress

    async def __call__(self, request: Request) -> Response:
        assert self._ingress is not None
        start: dict[str, Any] = {}
        parts: list[bytes] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        await self._ingress(request.scope, request.receive, send)
        answer = Response(b"".join(parts), start["status"])
        # Serve's proxy sends the id that it was given, or has given itself.
        answer.raw_headers = [pair for pair in start["headers"] if pair[0] != _REQUEST_ID]
        return answer

    async def __del__(self) -> None:
        if self._ingress is not None:
            await self._ingress.drain(self._config.serving.drain_s)


def application(args: dict[str, Any]) -> serve.Application:
    """What a Serve configuration names as `import_path`; `args` are as `front.ray` writes them.

    Other settings make another application, whose replicas are started anew; the model and the numbers of
    replicas are Serve's own settings of the deployments, which running replicas follow.
    """
    settings = dict(args.get("settings", {}))
    config = settings_of(settings, os.environ)
    router = RequestRouterConfig(
        request_router_class=OwnerRouter,
        request_router_kwargs={"drain_s": drain_s(config)},
    )
    rankers = serve.deployment(Ranker, name="Ranker", request_router_config=router)
    front = serve.deployment(Front, name="Ingress")
    return front.bind(settings, rankers.bind(settings))


@contextlib.contextmanager
def cluster_here(cpus: float, dashboard_port: int) -> Iterator[str]:
    """A Ray cluster of this machine alone; the URL of its dashboard, whose API takes Serve's configuration.

    Args:
        cpus: what Ray may reserve; it does not have to be what the machine has.
        dashboard_port: 0 takes a free one.

    Raises:
        ConfigError: the port is taken.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Else whatever runs beside it comes first.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        with socket.create_server(("127.0.0.1", dashboard_port)) as listener:
            port = int(listener.getsockname()[1])
    except OSError as error:
        raise ConfigError("--dashboard-port", f"{dashboard_port}: {error.strerror}") from error
    context = ray.init(
        num_cpus=math.ceil(cpus),
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        dashboard_port=port,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    try:
        yield f"http://{context.dashboard_url}"
    finally:
        serve.shutdown()
        ray.shutdown()
