"""The decoder equals the published implementation: whole prompts, chunks, appends, beams, training rows."""

from __future__ import annotations

import copy

import pytest
import torch
from decoder_cases import ALL_NAMES, NAMES, apart, ours, pool, prefilled, prompt, store, their_logits, theirs

from relaygr.generation.ancestors import Ancestors
from relaygr.kernels.reference.beams import ReferenceBeams
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.rows import BeamRows, PromptRow

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_whole_prompt(name: str, dtype: torch.dtype) -> None:
    tokens = prompt(150)
    model = ours(name, dtype)
    hidden, _ = prefilled(model, tokens)
    wanted = their_logits(name, tokens, dtype)[-1:]
    assert hidden.dtype == torch.float32
    assert apart(model.logits(hidden), wanted) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_chunks_and_an_append_to_what_is_cached(name: str, dtype: torch.dtype) -> None:
    tokens = prompt(150, seed=1)
    model = ours(name, dtype)
    wanted = their_logits(name, tokens, dtype)
    kv = store(model, 150)
    model.remember([PromptRow(tokens[:70], 0, kv)])
    middle = model.prefill([PromptRow(tokens[70:129], 70, kv)])
    last = model.prefill([PromptRow(tokens[129:], 129, kv)])
    assert apart(model.logits(middle), wanted[128:129]) <= TOLERANCE[dtype]
    assert apart(model.logits(last), wanted[-1:]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_beams_equal_a_forward_over_each_beams_own_sequence(name: str, dtype: torch.dtype) -> None:
    tokens = prompt(40, seed=2)
    model = ours(name, dtype)
    _, kv = prefilled(model, tokens)
    widths = (5, 7, 4)
    own = pool(model, sum(widths)).reserve(widths)
    assert own is not None
    ancestors = Ancestors(widths)
    generator = torch.Generator().manual_seed(3)
    sequences, found = tokens[None], []
    for depth, width in enumerate(widths, start=1):
        parents = torch.randint(len(sequences), (width,), generator=generator)
        codes = torch.randint(211, (width,), generator=generator)
        sequences = torch.cat([sequences[parents], codes[:, None]], dim=1)
        rows = BeamRows(codes, 40 + depth - 1, depth, kv, 40, own, ancestors.fork(parents))
        got = model.logits(model.step([rows]))
        found.append(apart(got, their_logits(name, sequences, dtype)[:, -1]))
    # In half width a single round depends on how a processor rounds products: the published implementation
    # is up to .022 away from itself in full width on an AMD EPYC, and this one up to .021.
    assert sum(found) / len(found) <= TOLERANCE[dtype]
    assert max(found) <= (TOLERANCE[dtype] if dtype == torch.float32 else 1.5 * TOLERANCE[dtype])
    assert (own.written_bytes, own.moved_bytes) == (own.nbytes, 0)


@pytest.mark.parametrize("name", NAMES)
def test_half_width_is_no_less_exact_than_the_published_implementation(name: str) -> None:
    narrow = copy.deepcopy(theirs(name, torch.bfloat16)).to(torch.bfloat16)
    model = ours(name, torch.bfloat16)
    mine, published = 0.0, 0.0
    for seed in range(6):
        tokens = prompt(60, seed)
        wanted = their_logits(name, tokens, torch.bfloat16)[-1:]
        with torch.no_grad():
            published += apart(narrow(tokens[None]).logits[0, -1:], wanted)
        mine += apart(model.logits(prefilled(model, tokens)[0]), wanted)
    assert mine <= 1.1 * published


@pytest.mark.parametrize("name", ALL_NAMES)
def test_training_rows(name: str) -> None:
    tokens = torch.stack([prompt(33, seed) for seed in range(3)])
    got = ours(name).train_logits(tokens)
    assert apart(got, their_logits(name, tokens)) <= 1e-5
    part = ours(name).train_logits(tokens, slice(10, 20))
    assert apart(part, got[..., 10:20]) <= 1e-6


@pytest.mark.parametrize("name", ["next", "qwen3"])
def test_training_moves_every_weight_and_what_was_served_before_stays_usable(name: str) -> None:
    model = Decoder(ours(name).config).init_weights(0)
    with torch.inference_mode():
        kv, state = store(model, 20), model.empty_state()
        model.prefill([PromptRow(prompt(20), 0, kv, state)])
    model.train_logits(prompt(30)[None]).logsumexp(-1).sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in model.parameters())


def test_columns_of_the_head() -> None:
    for dtype in DTYPES:
        model = ours("qwen3", dtype)
        hidden, _ = prefilled(model, prompt(20))
        whole = model.logits(hidden)
        chosen = torch.tensor([7, 0, 210, 7])
        assert whole.dtype == torch.float32
        assert apart(model.logits(hidden, slice(50, 90)), whole[:, 50:90]) <= 1e-6
        assert apart(model.logits(hidden, chosen), whole[:, chosen]) <= 1e-6
        with pytest.raises(ValueError, match="step"):
            model.logits(hidden, slice(0, 10, 2))


def test_columns_follow_weights_that_change() -> None:
    model = Decoder(ours("qwen3").config).init_weights(0).cast(torch.bfloat16)
    hidden = torch.randn(2, model.config.hidden_size)
    for part in range(12):  # more ranges than are kept
        model.logits(hidden, slice(part, part + 5))
    before = model.logits(hidden, slice(0, 5))
    with torch.no_grad():
        model.head_weight.mul_(2)
    assert torch.equal(model.logits(hidden, slice(0, 5)), before * 2)


def test_the_kernel_is_exchangeable() -> None:
    tokens = prompt(60, seed=4)
    model = Decoder(ours("qwen3").config, ReferenceBeams())
    model.load_state_dict(ours("qwen3").state_dict())
    kv = store(model, 60)
    got = model.prefill([PromptRow(tokens, 0, kv)])
    assert apart(got, prefilled(ours("qwen3"), tokens)[0]) <= 1e-5


def test_rows_behind_the_last_position_are_refused() -> None:
    model = ours("llama")
    kv = store(model, 1040)
    with pytest.raises(ValueError, match="max_positions, 1024"):
        model.prefill([PromptRow(prompt(1025), 0, kv)])
    with pytest.raises(ValueError, match="k >= 1"):
        PromptRow(prompt(0), 0, kv)
    with pytest.raises(ValueError, match="anc"):
        BeamRows(prompt(2), 5, 1, kv, 5, pool(model, 2).reserve([2]), torch.zeros(2, 2))  # type: ignore[arg-type]
