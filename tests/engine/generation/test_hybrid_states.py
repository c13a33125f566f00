"""Recurrent states between requests: in host memory, under pressure, deleted, encoded ahead."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from generate_rig import ITEMS, SIZES, catalogue, history, of_tokens, of_user, one, rows
from hybrid_rig import (
    GRAIN,
    STATE_MODEL,
    STATE_SETTINGS,
    audit,
    hybrid_decoder,
    hybrid_generator,
    shelf_of,
)

from relaygr.config.generator import GeneratorConfig
from relaygr.config.host import HostConfig
from relaygr.core.errors import ConfigError
from relaygr.engine.generation.generator import Encoded, Generator
from relaygr.engine.generation.memory import GeneratorMemory
from relaygr.engine.generation.opening import make_generator, open_generator
from relaygr.engine.generation.prompts import Asked
from relaygr.engine.generation.recurrent import StateStats
from relaygr.engine.generation.scheduler import GenerateScheduler
from relaygr.engine.generation.seats import GenerateSeat
from relaygr.generation.catalogue.artefact import write_catalogue
from relaygr.generation.errors import ModelNanError, QueueFullError
from relaygr.kernels.select import Choice
from relaygr.models.decoder.huggingface import save_decoder

PER_ITEM = len(SIZES) + 1
SPILL = HostConfig(run_chunk_tokens=8, load="always", clean_target=0.9)


def items(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, ITEMS, count).tolist()


def stats(backend: Generator) -> StateStats:
    found = backend.stats().states
    assert found is not None
    return found


def rest(backend: Generator) -> None:
    while backend.chore():
        pass


def states(backend: Generator, number: int) -> float:
    """`state_share` for room for so many."""
    return (number + 0.5) * backend.memory.state_bytes / backend.config.device_bytes


def only(number: int, **settings: object) -> Generator:
    """A generator with memory for so many states."""
    probe = hybrid_generator()
    share = states(probe, number)
    probe.close()
    return hybrid_generator({"state_share": share, **settings}, host=SPILL)


@pytest.mark.parametrize("mode", ["exclusive", "inclusive"])
def test_states_and_keys_come_back_from_host_memory_with_the_same_bits(mode: str) -> None:
    host = HostConfig(run_chunk_tokens=8, load="always", clean_target=0.9, tier_mode=mode)  # type: ignore[arg-type]
    settings = {"device_bytes": 1 << 20, "host_bytes": 8 << 20, "state_share": 0.02}
    backend = hybrid_generator(settings, kind="fat", host=host)
    answers = {}
    for number in range(6):
        answers[number] = rows(one(backend, of_user(f"u{number}", items(number, 80))))
        rest(backend)
        audit(backend)
    assert stats(backend).host_kept > 0
    loaded = 0
    for number in range(6):
        answer = one(backend, of_user(f"u{number}", items(number, 80)))
        loaded += answer.loaded_tokens
        # Inclusive host memory holds whole pages.
        whole = answer.result.prompt_tokens - (3 if mode == "inclusive" and answer.loaded_tokens else 0)
        assert answer.result.cached_tokens == whole
        assert rows(answer) == answers[number]
        rest(backend)
        audit(backend)
    assert loaded > 0
    assert dict(backend.stats().decisions)["load"] > 0
    # Grown while its beginning lies in host memory.
    grown = of_user("u0", [*items(0, 80), 1, 2])
    alone = hybrid_generator(kind="fat")
    answer = one(backend, grown)
    assert answer.result.cached_tokens == (3 + 80 * PER_ITEM) // GRAIN * GRAIN
    assert rows(answer) == rows(one(alone, grown))
    alone.close()
    backend.close()


def test_what_is_dearer_to_load_than_to_compute_is_computed() -> None:
    host = HostConfig(run_chunk_tokens=8, load="measured", clean_target=0.9)
    backend = hybrid_generator({"host_bytes": 8 << 20}, kind="fat", host=host)
    asked = of_user("u", items(0, 80))
    first = rows(one(backend, asked))
    rest(backend)
    assert backend._states.tiers.readable(backend.check(asked).refs[0]).device == 0
    backend._states._chooser.link.observe(1 << 20, 1, 60_000.0)  # a minute for a MiB
    for _ in range(50):
        backend._states._chooser.link.observe(1 << 20, 1, 60_000.0)
    again = one(backend, asked)
    assert (again.loaded_tokens, again.result.cached_tokens) == (0, 0)
    assert rows(again) == first
    audit(backend)
    backend.close()


def test_spare_snapshots_leave_first_and_of_the_prompts_used_longest_ago() -> None:
    backend = only(6)
    shelf = shelf_of(backend)

    def kept() -> dict[str, list[int]]:
        return {key.user: [one.tokens for one in held.snapshots] for key, held in shelf._kept.items()}

    one(backend, of_user("a", items(1, 40)))  # 163 tokens
    one(backend, of_user("b", items(2, 40)))
    assert kept() == {"a": [64, 128, 163], "b": [64, 128, 163]}
    one(backend, of_user("c", items(3, 40)))
    # The spare ones of a are what c took, and at the end its own state takes the place of nobody's.
    assert kept() == {"a": [128], "b": [128, 163], "c": [64, 128, 163]}
    one(backend, of_user("a", items(1, 40)))
    for number, user in enumerate("def"):
        one(backend, of_user(user, items(4 + number, 40)))
        audit(backend)
    assert set(kept()) == {"a", "c", "d", "e", "f"}  # b was used longest ago
    assert stats(backend).left > 0
    # Keys and values without a state are of no use.
    assert backend._states.tiers.readable(backend.check(of_user("b", items(2, 40))).refs[0]).near == 0
    backend.close()


def test_one_state_is_enough_and_is_used_up_where_there_is_no_other() -> None:
    backend, asked = only(1), of_user("u", items(5, 60))
    first = one(backend, asked)
    again = one(backend, asked)
    assert again.result.cached_tokens == again.result.prompt_tokens
    assert rows(again) == rows(first)
    audit(backend)
    longer = one(backend, of_user("u", items(5, 70)))
    # There was room for its end only, which is no place to go on from.
    assert longer.result.cached_tokens == 0
    audit(backend)
    # While one runs, there is none for another.
    ask, other = backend.check(asked), backend.check(of_user("v", [1, 2, 3]))
    seat = backend.seat(ask)
    assert isinstance(seat, GenerateSeat)
    assert backend.seat(other) is None
    seat.close()
    late = backend.seat(other)
    assert isinstance(late, GenerateSeat)
    late.close()
    assert stats(backend).working == 0
    audit(backend)
    backend.close()


def test_no_room_for_pages_gives_the_state_back() -> None:
    backend = hybrid_generator({"device_bytes": 1 << 20}, kind="fat")
    seats: list[GenerateSeat] = []
    while (seat := backend.seat(backend.check(of_user(f"u{len(seats)}", items(len(seats), 80))))) is not None:
        seats.append(seat)
    held = stats(backend)
    assert held.free > 0
    assert held.working == sum(seat.kv.state for seat in seats)
    audit(backend, seats)
    for seat in seats:
        seat.close()
    assert stats(backend).working == 0
    audit(backend)
    backend.close()


def test_evicted_keys_take_their_states_along() -> None:
    backend = hybrid_generator({"device_bytes": 1 << 20}, kind="fat")
    for number in range(6):
        one(backend, of_user(f"u{number}", items(number, 80)))
        audit(backend)
    assert backend.stats().pages.evictions > 0
    entries = backend.stats().pages.entries
    assert len(shelf_of(backend)._kept) == entries < 6
    backend.close()


def test_a_deleted_user_leaves_no_state_and_a_running_request_leaves_none_behind() -> None:
    backend = hybrid_generator({"host_bytes": 1 << 20}, host=SPILL)
    asked = of_user("u", items(6, 60))
    first = one(backend, asked)
    rest(backend)
    assert backend.forget("default", "u") == 1
    after = stats(backend)
    assert (after.kept, after.host_kept, after.snapshots) == (0, 0, 0)
    for ran in (0, 1, 2):  # deleted before, within and behind its prompt
        seat = backend.seat(backend.check(asked))
        assert isinstance(seat, GenerateSeat)
        for _ in range(ran):
            backend.prefill([seat])
        backend.forget("default", "u")
        while seat.outcome is None:
            (backend.round if seat.prefilled else backend.prefill)([seat])
        assert rows(seat.outcome) == rows(first)
        audit(backend, [seat])
        seat.close()
        assert (stats(backend).snapshots, backend.stats().pages.entries) == (0, 0)
    audit(backend)
    backend.close()


def test_what_was_encoded_ahead_needs_no_prefill_whatever_the_steps_are() -> None:
    wanted = {}
    for chunk in (10, 64, 100, 400):
        for number in (1, 3, 40):
            backend = (
                only(number, prefill_chunk_tokens=chunk) if number < 40 else hybrid_generator({}, host=SPILL)
            )
            ask, steps = backend.check(Asked(history=history("u", items(7, 60)))), []
            done = None
            while done is None:
                step, done = backend.encode(ask)
                steps.append(step.tokens)
                audit(backend)
            tokens = 3 + 60 * PER_ITEM
            assert done == Encoded(tokens, done.cached, True)
            # With room for one state, what is left of the last whole chunk is computed once.
            assert sum(steps) == tokens
            assert max(steps) <= max(backend._piece, GRAIN) + GRAIN
            answer = one(backend, of_user("u", items(7, 60)))
            assert answer.result.cached_tokens == tokens
            assert wanted.setdefault("u", rows(answer)) == rows(answer)
            backend.close()


def test_numbers_that_are_none_leave_no_state() -> None:
    backend = hybrid_generator()
    bad = of_user("bad", items(8, 40))
    model = backend._rounds._model
    logits = model.logits
    model.logits = lambda hidden, columns: logits(hidden, columns) * float("nan")  # type: ignore[method-assign]
    seat = backend.seat(backend.check(bad))
    assert isinstance(seat, GenerateSeat)
    while seat.outcome is None:
        (backend.round if seat.prefilled else backend.prefill)([seat])
    assert isinstance(seat.outcome, ModelNanError)
    seat.close()
    assert (stats(backend).snapshots, stats(backend).working) == (0, 0)
    audit(backend)
    backend.close()


def test_memory_that_cannot_hold_a_state_is_refused_by_name() -> None:
    shape, dtype = hybrid_decoder().config, torch.float32
    settings = GeneratorConfig(**{**STATE_SETTINGS, "device_bytes": 1 << 20})
    memory = GeneratorMemory(shape, dtype, settings)
    assert memory.device.pages + memory.device.states == 1 << 20
    assert memory.device.states >= memory.state_bytes
    assert memory.room.pages == memory.device.pages // memory.layout.page_bytes
    # Two states for the pages of half a longest prompt.
    halves = memory.device.pages / (settings.max_prompt_tokens / 2 * memory.layout.token_bytes)
    assert memory.device.states / memory.state_bytes == pytest.approx(2 * halves, rel=0.1)
    all_states = GeneratorConfig(**{**STATE_SETTINGS, "state_share": 1.0})
    with pytest.raises(ConfigError, match=r"generator.device_bytes.*no room for a page"):
        GeneratorMemory(shape, dtype, all_states)
    host = GeneratorConfig(**{**STATE_SETTINGS, "state_share": 0.999, "host_bytes": 1 << 14})
    assert GeneratorMemory(shape, dtype, host).host.pages == 1 << 14  # no states there


def test_folders_of_a_hybrid_are_opened_tried_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Choice(hybrid_decoder().kernel, torch.float32, "fp32", "", ())
    monkeypatch.setattr("relaygr.engine.generation.opening.choose_beams", lambda *_: kernel)
    save_decoder(hybrid_decoder(), tmp_path / "model")
    write_catalogue(tmp_path / "catalogue", catalogue())
    folders = {"model": str(tmp_path / "model"), "catalogue": str(tmp_path / "catalogue"), "dtype": "fp32"}
    opened = open_generator(GeneratorConfig(**{**STATE_SETTINGS, **folders}))
    asked = of_user("u", items(9, 40))
    first = one(opened, asked)
    assert one(opened, asked).result.cached_tokens == first.result.prompt_tokens
    audit(opened)
    opened.close()
    made = make_generator(hybrid_decoder(), STATE_MODEL, GeneratorConfig(**STATE_SETTINGS))
    made.catalogues.install(catalogue())
    for found, wanted in zip(rows(one(made, asked)), rows(first), strict=True):
        assert (found[0], found[2]) == (wanted[0], wanted[2])
        assert found[1] == pytest.approx(wanted[1], abs=1e-4)
    made.close()


def test_more_requests_than_states_wait_for_one_another_and_nobody_fails() -> None:
    probe = hybrid_generator()
    wanted = {n: rows(one(probe, of_user(f"u{n}", items(n, 20 + 9 * n)))) for n in range(6)}
    probe.close()
    backend = only(2, host_bytes=1 << 20)
    scheduler = GenerateScheduler(backend, backend.config)
    failed: list[object] = []

    def drive(seed: int) -> None:
        for n in np.random.default_rng(seed).integers(0, 6, 12).tolist():
            try:
                job = scheduler.generate(of_user(f"u{n}", items(n, 20 + 9 * n)))
                if rows(job.result(60)) != wanted[n]:
                    failed.append(n)
            except QueueFullError as error:
                failed.append(error)

    threads = [threading.Thread(target=drive, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    scheduler.close()
    assert failed == []
    assert stats(backend).working == 0
    audit(backend)
    backend.close()


def test_a_prompt_of_tokens_finds_the_beginning_of_another() -> None:
    backend = hybrid_generator()
    tokens = np.random.default_rng(10).integers(0, 50, 200).tolist()
    one(backend, of_tokens(tokens[:150]))
    grown = one(backend, of_tokens(tokens))
    assert grown.result.cached_tokens == 128
    audit(backend)
    backend.close()
