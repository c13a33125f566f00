"""Applications whose relay decides by a speed that tests make up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from serving_apps import App, close_scores, events, offline, running, settings

from relaygr.config.relay import RelayConfig, TriggerConfig
from relaygr.config.settings import Config
from relaygr.core.units import MIB
from relaygr.engine import RankRequest, UserHistory
from relaygr.relay.budgets import FIXED_BUDGETS, Budgets
from relaygr.relay.hold import State
from relaygr.relay.latency import Coefficients, LatencyModel, Pass
from relaygr.serving.pace import Known
from relaygr.serving.reload import relayed

# Three milliseconds a pass and half of one for each row: 100 events are late for the budget of 50 ms.
SPEED = Coefficients(t0_ms=3.0, t1_ms=0.5, t2_ms=0.0, t_launch_ms=0.3)
# Prefixes are held for as long as a busy machine may take to ask whether they are.
PATIENT = with_fields(FIXED_BUDGETS, t_life_ms=2000.0)
LONG, SHORT = events(100), events(20)
PAGE_BYTES = 32 * 256  # of `TINY`: K and V of two layers, two heads, 8 + 8 dims, fp32
CANDIDATES = [5, 1, 9]
BUDGET_MS = 5_000
HOST = {
    "load": "always",
    "run_chunk_tokens": 32,
    "host_bytes": MIB,
    "checksum_share": 1.0,
    "clean_target": 0.3,
}
SMALL = {"device_bytes": MIB, "dtype": "fp32", "kernel": "reference", "threads": 1}


def relay_settings(model: Path, **sections: dict[str, Any]) -> Config:
    """Every length may be at risk; sections are named with the values that differ."""
    config = settings(model, **sections.pop("serving", {}))
    config = replace(
        config, relay=RelayConfig(shadow_rate=0.0), trigger=TriggerConfig(seq_at_risk_min_tokens=0)
    )
    changed = {name: replace(getattr(config, name), **values) for name, values in sections.items()}
    return replace(config, **changed)


class MadeUp(LatencyModel):
    """What passes really take changes nothing."""

    def observe(self, batch: Sequence[Pass], measured_ms: float) -> None:
        """Not listened to."""


def follow(app: App, speed: Coefficients = SPEED, budgets: Budgets = PATIENT) -> None:
    """Go by this speed from now on."""
    service = app.service
    shape = service.engine.model_config
    known = Known(MadeUp(speed), budgets, 32, len(shape.contextual), shape.tokens_per_event)

    async def show() -> None:
        service._show(with_fields(service.served, known=known))

    app.do(show())


@contextmanager
def relaying(model: Path, speed: Coefficients | None = SPEED, **sections: dict[str, Any]) -> Iterator[App]:
    """Without a speed neither risk nor time is asked for."""
    with running(relay_settings(model, **sections)) as app:
        if speed is not None:
            follow(app, speed)
        else:
            served = relayed(app.service.served, app.service.config.relay)
            app.service.relay.serve(with_fields(served, build=replace(served.build, budgets=PATIENT)))
        yield app


def signal(app: App, user: str, columns: dict[str, Any] = LONG, **more: Any) -> Any:
    """The answer to a prefix signal with a history of its own."""
    return app.post("/v1/prefix", {"user": user, "history": columns, **more})


def feedback(app: App) -> Any:
    return app.call("GET", "/v1/relay/feedback").json()


def metric(app: App, name: str) -> float:
    """Of all models together: a name, with labels beside `model` where it has some; 0 if it is not there."""
    text = app.call("GET", "/metrics").text
    name, _, labels = name.partition("{")
    wanted = {part for part in labels.rstrip("}").split(",") if part}
    total = 0.0
    for line in text.splitlines():
        found, _, rest = line.partition("{")
        if found == name and wanted <= set(rest.partition("}")[0].split(",")):
            total += float(line.rpartition(" ")[2])
    return total


class Held:
    """The engine of an application, stopped in the middle of a step of a prefix."""

    def __init__(self, app: App) -> None:
        self.engine, self._entered, self._go = app.service.engine, threading.Event(), threading.Event()
        self._step = self.engine.prefetch_chunk

    def __enter__(self) -> Held:
        self.engine.prefetch_chunk = self._slow  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        del self.engine.prefetch_chunk

    def _slow(self, history: UserHistory, limit_tokens: int) -> Any:
        found = self._step(history, 32)
        self._entered.set()
        assert self._go.wait(20)
        return found

    def await_step(self) -> None:
        assert self._entered.wait(20)

    def release(self) -> None:
        self._go.set()


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def state(app: App, user: str) -> State | None:
    """Of what is held for the user."""
    return app.service.relay._holds.state(("default", user))


def quiet(app: App) -> None:
    until(lambda: feedback(app)["load"] == 0 and not app.service.relay._to_free)


def ranked(app: App, user: str, columns: dict[str, Any] = LONG, **more: Any) -> Any:
    """The answer, in time and as that of an engine that has nothing cached and no relay."""
    body = {"user": user, "candidates": CANDIDATES, "history": columns, "budget_ms": BUDGET_MS, **more}
    began = time.monotonic()
    answer = app.post("/v1/rank", body)
    assert time.monotonic() - began < BUDGET_MS / 1000
    if answer["path"] not in ("truncated", "degraded"):
        request = RankRequest(UserHistory("u", *columns.values()), CANDIDATES)
        alone = offline(Path(app.service.config.serving.model))
        close_scores(answer["scores"], alone.rank(request).logits)
    assert len(answer["scores"]) == len(CANDIDATES)
    return answer


def fill(app: App) -> None:
    """Others take the device, a user each 4 of its 128 pages."""
    for number in range(34):
        ranked(app, f"other-{number}")
    quiet(app)
