"""What an instance tells routers of itself."""

from __future__ import annotations

from relaygr.engine.laps import RelayState
from relaygr.engine.scheduler import Scheduler
from relaygr.serving import wire

MAX_RATE = 1e9  # JSON has no infinity


def feedback(
    status: str, model: str, page_tokens: int, epoch: int, scheduler: Scheduler | None, relay: RelayState
) -> wire.Feedback:
    """From the state of a service; it has no scheduler before it is ready."""
    load = scheduler.load() if scheduler is not None else None
    return wire.Feedback(
        ready=status == "ready",
        draining=status == "draining",
        build=model,
        page_tokens=page_tokens,
        epoch=epoch,
        load=0 if load is None else load.ranks + load.flights + load.busy,
        pre_wait_ms=0.0 if scheduler is None else scheduler.wait_ms(),
        rank_share=relay.rank_share,
        live_bytes=sum(size for _, size in relay.live_bytes),
        bound_bytes=relay.bound_bytes,
        q_rate_per_s=min(relay.q_rate_per_s, MAX_RATE),
        q_load_per_s=min(relay.q_load_per_s, MAX_RATE),
    )
