"""A prompt's state goes on from a snapshot as if it had never stopped, and from no snapshot that is wrong."""

from __future__ import annotations

import hashlib

import pytest
import torch
from decoder_cases import apart, ours, prompt
from hybrid_cases import Prompt, empty, hybrid_prefilled
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from relaygr.core.ids import Fingerprint
from relaygr.memory.recurrent import PromptState
from relaygr.memory.state_snapshots import SnapshotRule, StateSnapshot, StateSnapshots, least_missed
from relaygr.models.decoder.rows import PromptRow

VERSION, OTHER = Fingerprint(b"a" * 16), Fingerprint(b"b" * 16)


def _digest(tokens: Tensor, count: int) -> bytes:
    return hashlib.blake2b(tokens[:count].numpy().tobytes(), digest_size=16).digest()


def _grown(tokens: Tensor, every: int, dtype: torch.dtype = torch.float32) -> tuple[Prompt, StateSnapshots]:
    model = ours("next", dtype)
    held, snapshots = empty(model, 300), StateSnapshots(every, VERSION)
    for start, stop in snapshots.pieces(0, len(tokens)):
        model.remember([held.row(tokens[start:stop])])
        snapshots.keep(held.state, _digest(tokens, stop))
    return held, snapshots


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_continued_at_whole_chunks_it_has_the_bits_of_an_uninterrupted_prompt(dtype: torch.dtype) -> None:
    model, tokens = ours("next", dtype), prompt(200, seed=1)
    held, snapshots = _grown(tokens, 64, dtype)
    assert len(snapshots) == 4
    assert snapshots.nbytes == 4 * held.state.nbytes.total
    changed = tokens.clone()
    changed[150:] = prompt(50, seed=2)
    found = snapshots.before(150, VERSION, lambda count: _digest(changed, count))
    assert found is not None
    assert found.tokens == 128
    state = found.state.copy()
    hidden = model.prefill([PromptRow(changed[128:], 128, held.kv, state)])
    wanted, alone = hybrid_prefilled(model, changed)
    assert torch.equal(hidden, wanted)
    assert torch.equal(state.state(2), alone.state.state(2))
    assert found.tokens == 128  # the snapshot itself did not move on


def test_other_places_agree_as_fp32_does() -> None:
    model, tokens = ours("next"), prompt(100, seed=3)
    held, snapshots = _grown(tokens, 37)
    found = snapshots.before(100, VERSION, lambda count: _digest(tokens, count))
    assert found is not None
    assert found.tokens == 100  # the prefix's end
    assert apart(held.state.state(0), hybrid_prefilled(model, tokens)[1].state.state(0)) <= 1e-5


def test_a_snapshot_of_other_content_or_weights_is_none() -> None:
    tokens = prompt(100)
    _, snapshots = _grown(tokens, 32)
    other = tokens.clone()
    other[10] += 1

    def before(tokens: Tensor, count: int, version: Fingerprint = VERSION) -> int | None:
        found = snapshots.before(count, version, lambda at: _digest(tokens, at))
        return None if found is None else found.tokens

    assert before(tokens, 99) == 96
    assert before(tokens, 31) is None
    assert before(tokens, 99, OTHER) is None
    assert before(other, 100) is None
    each = snapshots.nbytes // 4
    assert snapshots.drop(64) == 2 * each
    assert before(tokens, 99) == 64
    with pytest.raises(ValueError, match="every"):
        StateSnapshots(0, VERSION)
    with pytest.raises(ValueError, match="no token"):
        snapshots.keep(empty(ours("next"), 1).state, b"")


def _put(snapshots: StateSnapshots, tokens: Tensor, at: int, hidden: Tensor | None = None) -> None:
    state = empty(ours("next"), 1).state
    state.tokens = at
    snapshots.put(StateSnapshot(state, _digest(tokens, at), VERSION, hidden))


def _places(snapshots: StateSnapshots) -> list[int]:
    return [snapshot.tokens for snapshot in snapshots]


def test_a_whole_prompt_needs_its_hidden_state_and_others_go_on_from_the_grain() -> None:
    tokens, gone = prompt(300), list[int]()
    snapshots = StateSnapshots(64, VERSION, grain=64, on_leave=lambda one: gone.append(one.tokens))
    for at in (64, 128, 130):
        _put(snapshots, tokens, at, torch.zeros(1, 4) if at == 130 else None)

    def found(limit: int, whole: int) -> int | None:
        one = snapshots.before(limit, VERSION, lambda at: _digest(tokens, at), whole)
        return None if one is None else one.tokens

    assert found(130, 130) == 130  # all of it, and its last hidden state
    assert found(200, 200) == 128  # an end elsewhere is no place to go on from
    assert found(129, 130) == 128
    assert found(128, 128) == 64  # its last token's hidden state is not known
    assert (found(63, 200), found(200, 64)) == (None, None)
    main = snapshots.main
    assert main is not None
    assert main.tokens == 128
    # A prompt has one end; another takes its place, and the same place its snapshot's.
    _put(snapshots, tokens, 150, torch.zeros(1, 4))
    _put(snapshots, tokens, 64)
    assert (gone, _places(snapshots)) == ([130, 64], [64, 128, 150])
    other = tokens.clone()
    other[100] += 1
    assert snapshots.drop_unless(140, lambda at: _digest(other, at)) > 0
    assert _places(snapshots) == [64]
    assert snapshots.take_out(64).tokens == 64
    assert (gone, snapshots.main) == ([130, 64, 150, 128], None)


@given(st.lists(st.integers(1, 300), unique=True, min_size=1, max_size=60), st.integers(1, 6))
def test_a_bounded_prompt_keeps_its_last_place_and_those_near_it(steps: list[int], most: int) -> None:
    state, held = empty(ours("next"), 1).state, 0

    def left(_: StateSnapshot) -> None:
        nonlocal held
        held -= 1

    snapshots = StateSnapshots(64, VERSION, grain=64, most=most, on_leave=left)
    for number, step in enumerate(sorted(steps)):
        at = PromptState(state.layout)
        at.tokens = 64 * step
        snapshots.put(StateSnapshot(at, b"", VERSION))
        held += 1
        places = _places(snapshots)
        assert places[-1] == 64 * step
        assert len(places) == held == min(number + 1, most)


def test_what_leaves_is_missed_least() -> None:
    kept: list[int] = []
    for step in range(1, 65):
        kept.append(64 * step)
        if len(kept) > 5:
            kept.remove(least_missed(kept))
    behind = [64 * 64 - place for place in kept]
    assert behind[-1] == 0
    # Dense near the end, and sparse in front.
    assert behind[-2] <= 4 * 64
    assert behind[0] - behind[1] > 4 * (behind[-2] - behind[-1])

    def cost(places: list[int]) -> float:
        """Tokens that a change computes again, where its chance falls with the distance from the end."""
        end, total = kept[-1] + 1, 0.0
        for start, stop in zip([0, *places], [*places, end], strict=True):
            total += sum((at - start) / (end - at) for at in range(start, stop))
        return total

    for kept in ([64, 320, 384, 1024, 1088, 1152], [640, 704, 1024, 2048], [64, 128, 192, 256]):
        costs = {gone: cost([place for place in kept if place != gone]) for gone in kept[:-1]}
        assert costs[least_missed(kept)] <= 1.02 * min(costs.values())  # an integral stands for the sum


def test_sizes_of_snapshots_are_at_least_one() -> None:
    for wrong in ({"most": 0}, {"grain": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            StateSnapshots(1, VERSION, **wrong)


@pytest.mark.parametrize(
    ("total", "stops"),
    [
        (30, [30]),
        (64, [64]),
        (130, [128, 130]),
        (448, [448]),
        (450, [448, 450]),
        (1000, [448, 896, 960, 1000]),
    ],
)
def test_a_rule_cuts_prompts_at_whole_chunks(total: int, stops: list[int]) -> None:
    rule = SnapshotRule(every=400, most=2, grain=64)
    assert rule.step == 448
    cuts, done = [], 0
    while done < total:
        done = rule.stop(done, total)
        cuts.append(done)
    assert cuts == stops
    assert [at for at in range(total + 1) if rule.due(at, total)] == stops[:-1]
    assert rule.stop(100, 200) == 192
