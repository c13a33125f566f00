"""Steps and shortened histories follow the speed of the model; live timings keep it up to date."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from serving_apps import TINY, events, offline, running, save_model, settings

from relaygr.config.settings import BudgetConfig
from relaygr.core.errors import ConfigError
from relaygr.engine import RankRequest, UserHistory
from relaygr.engine.jobs import Flight, RankJob
from relaygr.engine.scheduler import DEFAULT_CHUNK_TOKENS
from relaygr.relay.budgets import FIXED_BUDGETS
from relaygr.relay.latency import Coefficients, LatencyModel, Pass
from relaygr.serving.pace import Known, Pace
from relaygr.serving.reload import load
from relaygr.serving.warm import speed

SPEED = Coefficients(t0_ms=3.0, t1_ms=0.004, t2_ms=1e-6, t_launch_ms=0.3)


def known(slots: int = 0, per_event: int = 1) -> Known:
    return Known(LatencyModel(SPEED), FIXED_BUDGETS, 32, slots, per_event)


def job(history: int, candidates: int, cached: int = 0) -> RankJob:
    columns = events(history)
    request = RankRequest(UserHistory("u", *columns.values()), range(candidates))
    return RankJob(request, 1.0, 0.0, history, cached)


def test_nothing_known_changes_nothing() -> None:
    pace = Pace()
    assert pace.chunk_tokens(0, 500) == DEFAULT_CHUNK_TOKENS
    assert pace.fit(job(500, 10), 0.001) == 500


def test_a_setting_fixes_the_step() -> None:
    pace = Pace(96)
    pace.follow(known())
    assert pace.chunk_tokens(4096, 4096) == 96


@pytest.mark.parametrize(("cached", "tokens"), [(0, 832), (2048, 576), (4096, 416), (8160, 32)])
def test_steps_of_the_published_example(cached: int, tokens: int) -> None:
    pace = Pace()
    pace.follow(known())
    assert pace.chunk_tokens(cached, 8192 - cached) == tokens


def test_the_last_step_takes_a_small_rest_along() -> None:
    pace = Pace()
    pace.follow(known())
    assert pace.chunk_tokens(2048, 700) == 700
    assert pace.chunk_tokens(2048, 800) == 576


def test_what_fits_is_whole_and_what_does_not_is_cut_to_a_bucket() -> None:
    pace = Pace()
    pace.follow(known())
    long = job(6000, 256)
    needed_ms = SPEED.full_ms(6000, 0, 256) + FIXED_BUDGETS.guard_ms
    assert pace.fit(long, needed_ms + 0.01) == 6000
    cut = pace.fit(long, needed_ms - 1)
    assert cut % 128 == 0
    assert SPEED.full_ms(cut, 0, 256) + FIXED_BUDGETS.guard_ms <= needed_ms - 1
    assert SPEED.full_ms(cut + 128, 0, 256) + FIXED_BUDGETS.guard_ms > needed_ms - 1
    assert pace.fit(long, 0.0) == 0


def test_what_is_cached_costs_little() -> None:
    pace = Pace()
    pace.follow(known())
    assert pace.fit(job(6000, 256, cached=5990), 20.0) == 6000


def test_events_are_counted_not_tokens() -> None:
    pace = Pace()
    pace.follow(known(slots=28, per_event=2))
    assert pace.fit(job(6000, 0), FIXED_BUDGETS.guard_ms + SPEED.full_ms(256, 0, 0)) == (256 - 28) // 2


def test_batches_feed_the_model(model_folder: Path) -> None:
    pace, engine = Pace(), offline(model_folder)
    pace.follow(known())
    assert pace.known is not None
    for batch in range(3):
        for _ in range(2):
            one = job(50, 4)
            one.started_s, one.done_s = float(batch), batch + 0.02
            pace.ranked(one, engine.rank(one.request))
    # The last batch may not be over yet.
    assert pace.known.latency.error().samples == 2
    assert pace.known.latency.k99 > 1


def test_steps_of_prefixes_feed_the_model_too(model_folder: Path) -> None:
    pace, engine = Pace(), offline(model_folder)
    history = job(80, 1).request.history
    flight = Flight(history, 1.0, 0.0)
    pace.stepped(flight, 0.1)  # nothing is known yet, and nothing was done
    pace.follow(known())
    assert pace.known is not None
    sizes = []
    for _ in range(3):
        flight.stepped(engine.prefetch_chunk(history, 32), 0.01)
        assert flight.last_step is not None
        sizes.append((flight.last_step.tokens_cached, flight.last_step.tokens_computed))
        step = Pass(new_tokens=sizes[-1][1], cached_tokens=sizes[-1][0], chunk=True)
        pace.stepped(flight, 2 * SPEED.batch_ms([step]) / 1000)
    error = pace.known.latency.error()
    assert (error.samples, error.median) == (3, pytest.approx(2.0))
    assert [done + new for done, new in sizes][-1] == 80
    flight.stepped(engine.prefetch_chunk(history, 32), 0.01)  # nothing is left
    pace.stepped(flight, 0.5)
    assert pace.known.latency.error().samples == 3


def test_a_deadline_shortens_a_history_and_says_so(tmp_path: Path) -> None:
    save_model(tmp_path, config=replace(TINY, max_seq_len=1024, position_buckets=1024))
    slow = replace(SPEED, t1_ms=100.0)
    with running(settings(tmp_path)) as app:
        app.service.pace.follow(
            Known(LatencyModel(slow), FIXED_BUDGETS, 32, 0, 1),
        )
        columns = events(900)
        app.post("/v1/events", {"user": "u", **columns})
        body = {"user": "u", "candidates": [1, 2], "deadline_ms": 30_000}
        answer = app.post("/v1/rank", body)
        assert (answer["path"], answer["served_tokens"]) == ("truncated", 256)
        newest = UserHistory("u", *(values[-256:] for values in columns.values()), first_sequence=644)
        wanted = offline(tmp_path).rank(RankRequest(newest, [1, 2])).logits
        np.testing.assert_allclose(answer["scores"], wanted, rtol=0, atol=2e-5)
        assert app.call("GET", "/v1/users/u/state").json()["cached"] == 0


def test_the_speed_is_measured_and_taken_over(model_folder: Path) -> None:
    engine, config = offline(model_folder), settings(model_folder, calibrate_s=0.3)
    assert speed(engine, settings(model_folder)) is None
    measured = speed(engine, config)
    assert measured is not None
    assert measured.page_tokens == 32
    again = speed(engine, config, measured)
    assert again is not None
    assert again.latency is measured.latency


def test_budgets_that_contradict_the_speed_are_refused(model_folder: Path) -> None:
    config = settings(model_folder, calibrate_s=0.3)
    tight = replace(config, budgets=BudgetConfig(b_rank_ms=1e-6, guard_ms=0.0))
    with pytest.raises(ConfigError, match="budgets"):
        speed(offline(model_folder), tight)


def test_a_stored_calibration_is_read_instead(tmp_path: Path) -> None:
    folder, file = tmp_path / "m", tmp_path / "speed.json"
    save_model(folder)
    config = settings(folder, calibrate_s=0.5, calibration=str(file))
    first = load(str(folder), config)
    stored = file.read_bytes()
    again = load(str(folder), config)
    assert file.read_bytes() == stored
    assert first.known is not None
    assert again.known is not None
    assert again.known.latency.coefficients == first.known.latency.coefficients
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"speed\.json"):
        load(str(folder), config)
