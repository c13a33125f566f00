"""Prompts between requests: encoded ahead, brought back from host memory, forgotten, and too many at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from generate_rig import (
    ITEMS,
    SIZES,
    generator,
    installed,
    of_tokens,
    of_user,
    one,
    rows,
    run,
    wide_catalogue,
)
from generate_rig import history as history_of

from relaygr.config.host import HostConfig
from relaygr.core.clock import ManualClock
from relaygr.engine.generation.generator import Encoded, Generator
from relaygr.engine.generation.prompts import Asked
from relaygr.engine.generation.seats import GenerateSeat
from relaygr.engine.generation.states import Hiddens
from relaygr.generation.errors import ModelNanError

PAGE = 8
PER_ITEM = len(SIZES) + 1


def items(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, ITEMS, count).tolist()


def encode(backend: Generator, user: str, history: list[int]) -> tuple[Encoded, list[int]]:
    """Encode ahead; also the tokens of each step."""
    ask, steps = backend.check(Asked(history=history_of(user, history))), []
    while True:
        step, done = backend.encode(ask)
        steps.append(step.tokens)
        if done is not None:
            return done, steps


def test_what_was_encoded_ahead_needs_no_prefill_and_changes_nothing() -> None:
    settings = {"prefill_chunk_tokens": 40}
    backend, fresh = generator(settings), generator(settings)
    history = items(0, 50)
    done, steps = encode(backend, "u", history)
    tokens = 3 + 50 * PER_ITEM
    assert done == Encoded(tokens, done.cached, True)
    assert sum(steps) == tokens
    assert max(steps) <= settings["prefill_chunk_tokens"]
    answer = one(backend, of_user("u", history))
    assert answer.result.cached_tokens == tokens
    assert rows(answer) == rows(one(fresh, of_user("u", history)))
    assert encode(backend, "u", history) == (Encoded(tokens, tokens, True), [0])
    # A request may come between the steps.
    ask = backend.check(Asked(history=history_of("v", history)))
    backend.encode(ask)
    early = one(backend, of_user("v", history))
    assert 0 < early.result.cached_tokens < tokens
    assert rows(early) == rows(answer)
    backend.close()
    fresh.close()


def test_prompts_that_left_the_device_come_back_from_host_memory() -> None:
    host = HostConfig(run_chunk_tokens=PAGE, load="always", clean_target=0.9)
    backend = generator({"host_bytes": 4 << 20}, host=host)
    assert backend.stats().pages.total_pages < 20 * (3 + 55 * PER_ITEM) / PAGE
    users = [f"u{number}" for number in range(20)]
    answers = {}
    for user in users:
        answers[user] = rows(one(backend, of_user(user, items(int(user[1:]), 55))))
        while backend.chore():
            pass
    # Only what was computed is kept, and without the hidden state the last token is computed again.
    backend._states.hiddens = Hiddens(0)
    loaded = 0
    for user in users:
        answer = one(backend, of_user(user, items(int(user[1:]), 55)))
        loaded += answer.loaded_tokens
        while backend.chore():
            pass
        assert answer.result.cached_tokens == answer.result.prompt_tokens - 1
        assert rows(answer) == answers[user]
    assert loaded > 0
    assert dict(backend.stats().decisions)["load"] > 0
    backend.close()


def test_a_forgotten_user_leaves_nothing_and_a_running_request_leaves_nothing_behind() -> None:
    backend = generator({"host_bytes": 1 << 20})
    asked = of_user("u", items(3, 30))
    first = one(backend, asked)
    assert backend.forget("default", "u") == 1
    assert not len(backend._states.hiddens)
    again = one(backend, asked)
    assert again.result.cached_tokens == 0
    assert rows(again) == rows(first)
    backend.forget("default", "u")
    # Forgotten between its chunks: it may end, but nobody finds what it computed.
    ask = backend.check(asked)
    seat = backend.seat(ask)
    assert isinstance(seat, GenerateSeat)
    backend.prefill([seat])
    assert backend.forget("default", "u") == 0
    while seat.outcome is None:
        (backend.round if seat.prefilled else backend.prefill)([seat])
    assert rows(seat.outcome) == rows(first)
    seat.close()
    assert backend.stats().pages.entries == 0
    assert not len(backend._states.hiddens)
    assert backend.stats().pages.free_pages == backend.stats().pages.total_pages
    backend.close()


def test_two_requests_of_a_user_wait_for_one_another_and_seats_give_everything_back() -> None:
    backend = generator()
    first, second = (backend.check(of_user("u", items(4, 30))) for _ in range(2))
    seat = backend.seat(first)
    assert isinstance(seat, GenerateSeat)
    assert backend.seat(second) is None
    seat.close()
    seat.close()
    after = backend.stats()
    assert (after.seats, after.beam_bytes, after.scratch_bytes, after.pages.pinned_pages) == (0, 0, 0, 0)
    other = backend.seat(second)
    assert isinstance(other, GenerateSeat)
    other.close()
    backend.close()


@pytest.mark.parametrize(
    ("settings", "width"),
    [({"beam_bytes": 1 << 17}, 200), ({"scratch_bytes": 1 << 16}, 600), ({"device_bytes": 1 << 20}, 8)],
)
def test_no_seat_is_given_without_all_of_its_memory(settings: dict[str, int], width: int) -> None:
    settings = {**settings, "max_prompt_tokens": 500}
    backend = generator(settings, catalogues=installed(wide_catalogue()))
    seats: list[GenerateSeat] = []
    asked = [
        of_tokens(np.random.default_rng(n).integers(0, 50, 490).tolist(), beam_width=width) for n in range(20)
    ]
    while (seat := backend.seat(backend.check(asked[len(seats)]))) is not None:
        seats.append(seat)
    held = backend.stats()
    assert 1 <= len(seats) < 20
    assert held.seats == len(seats)
    assert held.beam_bytes == sum(seat.kv.unshared for seat in seats)
    for seat in seats:
        seat.close()
    after = backend.stats()
    assert (after.seats, after.beam_bytes, after.scratch_bytes, after.pages.pinned_pages) == (0, 0, 0, 0)
    backend.close()


def test_numbers_that_are_none_are_an_error_of_their_request_and_nothing_of_it_is_kept() -> None:
    backend, good = generator(), of_user("good", items(5, 20))
    wanted = rows(one(generator(), good))
    model = backend._rounds._model
    logits = model.logits

    def spoilt(hidden: torch.Tensor, columns: object) -> torch.Tensor:
        found = logits(hidden, columns)  # type: ignore[arg-type]
        return found * float("nan") if backend_calls.pop(0) else found

    backend_calls = [True, False, False, False, False]
    model.logits = spoilt  # type: ignore[method-assign]
    bad, fine = run(backend, [of_user("bad", items(6, 20)), good])
    assert isinstance(bad, ModelNanError)
    assert rows(fine) == wanted
    assert backend._states.tiers.readable(backend.check(of_user("bad", items(6, 20))).refs[0]).near == 0
    backend.close()


def test_hidden_states_are_bounded_and_of_their_content() -> None:
    hiddens, backend = Hiddens(2), generator(clock=ManualClock())
    refs = [backend.check(of_tokens([n])).refs[0] for n in range(3)]
    for number, ref in enumerate(refs):
        hiddens.put(ref, torch.full((1, 2), float(number)))
    hiddens.put(refs[2], None)
    assert hiddens.get(refs[0]) is None
    assert [float(found[0, 0]) for ref in refs[1:] if (found := hiddens.get(ref)) is not None] == [1, 2]
    hiddens.forget(refs[1].tenant, refs[1].user)
    assert len(hiddens) == 1
    backend.close()
