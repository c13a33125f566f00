"""Recurrent states of a pool: each is somebody's or free, and copies share nothing."""

from __future__ import annotations

import random

import pytest
import torch

from relaygr.memory.recurrent import PromptState, RecurrentLayout
from relaygr.memory.state_pool import PooledState, StatePool

LAYOUT = RecurrentLayout(2, 1, 2, 4, 3, (2,), taps=3, channels=5, row_dtype=torch.bfloat16)


def filled(state: PromptState, number: float) -> None:
    for layer in range(LAYOUT.layers):
        rows = torch.full((2, 5), number, dtype=torch.bfloat16)
        state.write(layer, torch.full(LAYOUT.state_shape, float(number)), rows)


def holds(state: PromptState, number: float) -> bool:
    parts = [part for layer in range(LAYOUT.layers) for part in (state.state(layer), state.rows(layer))]
    return all(bool((part == number).all()) for part in parts)


def test_states_of_a_pool_share_no_memory_and_come_back_once() -> None:
    one = LAYOUT.prompt_bytes.total
    pool = StatePool(LAYOUT, 5 * one + one - 1)
    assert (pool.states, pool.nbytes, pool.state_bytes) == (5, 5 * one, one)
    rng, held = random.Random(0), dict[int, PooledState]()
    for number in range(300):
        if held and rng.random() < 0.5:
            key = rng.choice(sorted(held))
            state = held.pop(key)
            assert holds(state, key)
            state.release()
            state.release()
        elif (taken := pool.take()) is not None:
            filled(taken, number % 100)
            assert taken.nbytes.total == one
            held[number % 100] = taken
        else:
            assert len(held) == 5
        assert pool.free == 5 - len(held)
    assert all(holds(state, key) for key, state in held.items())
    assert StatePool(LAYOUT, one - 1).take() is None


def test_a_state_is_copied_between_pools_and_cleared() -> None:
    one = LAYOUT.prompt_bytes.total
    here, there = StatePool(LAYOUT, one).take(), StatePool(LAYOUT, one).take()
    assert here is not None
    assert there is not None
    filled(here, 7)
    here.tokens = 11
    there.copy_from(here)
    assert (there.tokens, holds(there, 7)) == (11, True)
    here.clear()
    assert (here.tokens, holds(here, 0), holds(there, 7)) == (0, True, True)
    assert holds(there.copy(), 7)
    other = RecurrentLayout(1, 1, 2, 4, 3, (2,))
    with pytest.raises(ValueError, match="does not fit"):
        there.copy_from(PromptState(other))
