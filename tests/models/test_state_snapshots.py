"""A prompt's state goes on from a snapshot as if it had never stopped, and from no snapshot that is wrong."""

from __future__ import annotations

import hashlib

import pytest
import torch
from decoder_cases import apart, ours, prompt
from hybrid_cases import Prompt, empty, hybrid_prefilled
from torch import Tensor

from relaygr.core.ids import Fingerprint
from relaygr.memory.state_snapshots import StateSnapshots
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
