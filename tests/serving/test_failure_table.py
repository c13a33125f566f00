"""Whatever goes wrong on the way of a request, its answer is valid and in time, or says what it lacks.

What needs several processes is in test_gateway_failures.py, test_gateway_processes.py and test_peers.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from relay_apps import (
    HOST,
    PAGE_BYTES,
    SMALL,
    Held,
    feedback,
    fill,
    metric,
    quiet,
    ranked,
    relaying,
    signal,
    state,
    until,
)
from serving_apps import App, error_of

from relaygr.engine import tiers as tiers_module


@pytest.fixture(scope="module")
def served(model_folder: Path) -> Iterator[App]:
    with relaying(model_folder, speed=None, engine=SMALL, host=HOST) as app:
        yield app


def test_the_trigger_refuses_or_is_broken(model_folder: Path) -> None:
    with relaying(model_folder, relay={"enabled": False}) as app:
        assert signal(app, "u")["reason"] == "disabled"
        assert ranked(app, "u")["path"] == "full"
        assert metric(app, 'relaygr_trigger_decisions_total{reason="disabled"}') == 1
    with relaying(model_folder) as app, pytest.MonkeyPatch.context() as patch:
        patch.setattr(app.service.relay, "decide", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            signal(app, "u")
        assert ranked(app, "u")["path"] == "full"


def test_a_signal_is_lost(served: App) -> None:
    before = metric(served, "relaygr_preinfer_chunks_total")
    assert ranked(served, "lost")["path"] == "full"
    assert metric(served, "relaygr_preinfer_chunks_total") == before


def test_a_signal_is_late(served: App) -> None:
    with Held(served) as held:
        assert signal(served, "late")["admission"] == "admitted"
        held.await_step()
        threading.Timer(0.05, held.release).start()
        answer = ranked(served, "late")
        assert (answer["path"], answer["tokens_cached"]) == ("resumed", 32)


def test_a_signal_is_doubled_or_overtaken(served: App) -> None:
    with Held(served) as held:
        said = [signal(served, "first")["admission"], signal(served, "first")["admission"]]
        held.await_step()
        assert said == ["admitted", "joined"]
        assert signal(served, "overtaken")["admission"] == "admitted"
        threading.Timer(0.05, held.release).start()
        ranked(served, "overtaken")
        assert ranked(served, "first")["path"] in ("hit", "resumed")
    quiet(served)
    assert ranked(served, "first")["path"] == "hit"


def test_a_reservation_is_refused(model_folder: Path) -> None:
    with relaying(model_folder, speed=None, relay={"h_relay_bytes": 4 * PAGE_BYTES}) as app:
        signal(app, "held")
        quiet(app)
        assert signal(app, "refused")["reason"] == "footprint"
        assert ranked(app, "refused")["path"] == "full"
        assert ranked(app, "held")["path"] == "hit"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("not enough memory")])
def test_memory_is_short(served: App, error: Exception) -> None:
    def fail(*_: object) -> Any:
        raise error

    name = f"short-{type(error).__name__}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(served.service.engine, "prefetch_chunk", fail)
        assert signal(served, name)["admission"] == "admitted"
        quiet(served)
        assert ranked(served, name)["path"] == "full"
        assert state(served, name) is None
    assert signal(served, name)["admission"] == "hit"


def test_nobody_ranks_in_time(served: App) -> None:
    orphans = metric(served, 'relaygr_prefix_waste_total{cause="orphan"}')
    signal(served, "orphan")
    until(lambda: state(served, "orphan") is None)
    until(lambda: metric(served, 'relaygr_prefix_waste_total{cause="orphan"}') > orphans)
    ranked(served, "orphan")
    until(lambda: metric(served, 'relaygr_prefix_waste_total{cause="expired_unconsumed"}') >= 1)


def test_a_ranking_is_misrouted(served: App, model_folder: Path) -> None:
    with relaying(model_folder, speed=None) as other:
        signal(served, "misrouted")
        quiet(served)
        assert ranked(other, "misrouted")["path"] == "full"  # nothing is fetched


def test_an_instance_goes_away(model_folder: Path) -> None:
    """Drained: it serves while it says so, then refuses; another one goes on without its prefixes."""
    with relaying(model_folder, speed=None, serving={"drain_delay_s": 1.0}) as app:
        signal(app, "u")
        quiet(app)
        draining = asyncio.run_coroutine_threadsafe(app.service.drain(5.0), app._loop)
        until(lambda: feedback(app)["draining"])
        assert not feedback(app)["ready"]
        assert ranked(app, "u")["path"] == "hit"
        assert draining.result(20)
        error_of(app.call("POST", "/v1/rank", {"user": "u", "candidates": [1]}), 503, "not_ready")
    with relaying(model_folder, speed=None) as other:
        assert ranked(other, "u")["path"] == "full"


def test_the_link_to_the_host_is_saturated(model_folder: Path) -> None:
    slow = {**HOST, "reload_bytes_per_s": 1.0}
    with relaying(model_folder, speed=None, engine=SMALL, host=slow) as app:
        ranked(app, "u")
        fill(app)
        assert signal(app, "u", deadline_ms=1000)["admission"] == "admitted"
        quiet(app)
        assert metric(app, 'relaygr_reload_skipped_total{reason="late"}') == 1
        assert metric(app, 'relaygr_copy_bytes_total{direction="h2d"}') == 0
        assert ranked(app, "u")["path"] == "hit"


def test_what_is_reloaded_is_damaged(served: App) -> None:
    ranked(served, "damaged")
    fill(served)
    carrier = served.service.engine._tiers._carrier
    assert carrier is not None
    carrier._mover.host.values.add_(1.0)
    assert ranked(served, "damaged")["path"] == "full"
    assert metric(served, "relaygr_build_mismatch_total") == 1
    served.service.engine._tiers.books.audit()


def test_the_host_is_full(model_folder: Path) -> None:
    tiny = {**HOST, "host_bytes": 8 * PAGE_BYTES}
    with relaying(model_folder, speed=None, engine=SMALL, host=tiny) as app:
        fill(app)
        assert metric(app, "relaygr_host_evictions_total") > 0
        assert ranked(app, "other-0")["path"] == "full"


def test_host_memory_cannot_be_had(model_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object) -> Any:
        raise MemoryError("no room")

    with pytest.MonkeyPatch.context() as patch, caplog.at_level("WARNING"):
        patch.setattr(tiers_module, "HostPool", refuse)
        with relaying(model_folder, speed=None, host=HOST) as app:
            assert "no host tier: no room" in caplog.text
            signal(app, "u")
            quiet(app)
            assert ranked(app, "u")["path"] == "hit"
