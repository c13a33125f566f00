"""Applications whose relay decides by a speed that tests make up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from serving_apps import App, events, running, settings

from relaygr.config.relay import RelayConfig, TriggerConfig
from relaygr.config.settings import Config
from relaygr.relay.budgets import FIXED_BUDGETS, Budgets
from relaygr.relay.latency import Coefficients, LatencyModel
from relaygr.serving.pace import Known

# Three milliseconds a pass and half of one for each row: 100 events are late for the budget of 50 ms.
SPEED = Coefficients(t0_ms=3.0, t1_ms=0.5, t2_ms=0.0, t_launch_ms=0.3)
LONG, SHORT = events(100), events(20)
PAGE_BYTES = 32 * 256  # of `TINY`: K and V of two layers, two heads, 8 + 8 dims, fp32


def relay_settings(model: Path, **sections: dict[str, Any]) -> Config:
    """Every length may be at risk; sections are named with the values that differ."""
    config = settings(model, **sections.pop("serving", {}))
    config = replace(
        config, relay=RelayConfig(shadow_rate=0.0), trigger=TriggerConfig(seq_at_risk_min_tokens=0)
    )
    changed = {name: replace(getattr(config, name), **values) for name, values in sections.items()}
    return replace(config, **changed)


def follow(app: App, speed: Coefficients = SPEED, budgets: Budgets = FIXED_BUDGETS) -> None:
    """Go by this speed from now on."""
    service = app.service
    shape = service.engine.model_config
    known = Known(
        LatencyModel(speed), budgets, 32, shape.max_seq_len, len(shape.contextual), shape.tokens_per_event
    )

    async def show() -> None:
        service._show(with_fields(service.served, known=known))

    app.do(show())


@contextmanager
def relaying(model: Path, speed: Coefficients | None = SPEED, **sections: dict[str, Any]) -> Iterator[App]:
    with running(relay_settings(model, **sections)) as app:
        if speed is not None:
            follow(app, speed)
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
