"""Hybrid decoders equal the published implementation: prompts, chunks, appends, beams; bits of batches."""

from __future__ import annotations

import copy

import pytest
import torch
from decoder_cases import HYBRID_NAMES, VOCABULARY, apart, ours, prompt, their_logits, theirs
from hybrid_cases import Beams, empty, hybrid_prefilled, records_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.rows import PromptRow
from relaygr.models.decoder.state_beams import StateMode

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, torch.bfloat16]
MODES: list[StateMode] = ["records", "materialise", "replay"]
WIDTHS = (5, 7, 4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 2, 3, 64, 150])
@pytest.mark.parametrize("name", HYBRID_NAMES)
def test_a_whole_prompt(name: str, length: int, dtype: torch.dtype) -> None:
    tokens, model = prompt(length), ours(name, dtype)
    hidden, held = hybrid_prefilled(model, tokens)
    wanted = their_logits(name, tokens, dtype)[-1:]
    assert hidden.dtype == torch.float32
    assert held.state.tokens == length
    assert apart(model.logits(hidden), wanted) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", HYBRID_NAMES)
def test_chunks_and_an_append_to_what_is_cached(name: str, dtype: torch.dtype) -> None:
    tokens, model = prompt(150, seed=1), ours(name, dtype)
    wanted = their_logits(name, tokens, dtype)
    held = empty(model, 150)
    model.remember([held.row(tokens[:70])])
    middle = model.prefill([held.row(tokens[70:129])])
    snapshot = held.state.copy()
    last = model.prefill([held.row(tokens[129:])])
    assert apart(model.logits(middle), wanted[128:129]) <= TOLERANCE[dtype]
    assert apart(model.logits(last), wanted[-1:]) <= TOLERANCE[dtype]
    again = model.prefill([PromptRow(tokens[129:], 129, held.kv, snapshot)])
    assert torch.equal(again, last)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HYBRID_NAMES)
def test_beams_equal_a_forward_over_each_beams_own_sequence(
    name: str, mode: StateMode, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ours(name, dtype)
    monkeypatch.setattr(model, "state_mode", mode)
    for length in (1, 2, 40):
        tokens = prompt(length, seed=2)
        _, held = hybrid_prefilled(model, tokens)
        beams, before = Beams(model, held, WIDTHS), held.state.copy()
        for parents, codes, sequences in _forks(tokens):
            got = model.logits(beams.step(parents, codes))
            assert apart(got, their_logits(name, sequences, dtype)[:, -1]) <= TOLERANCE[dtype]
        assert records_of(beams).moved_bytes == 0
        assert torch.equal(before.state(0), held.state.state(0))


def _forks(tokens: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Parents, codes and whole sequences of each depth."""
    generator, sequences, found = torch.Generator().manual_seed(3), tokens[None], []
    for width in WIDTHS:
        parents = torch.randint(len(sequences), (width,), generator=generator)
        codes = torch.randint(VOCABULARY, (width,), generator=generator)
        sequences = torch.cat([sequences[parents], codes[:, None]], dim=1)
        found.append((parents, codes, sequences))
    return found


@pytest.mark.parametrize("name", HYBRID_NAMES)
def test_half_width_is_no_less_exact_than_the_published_implementation(name: str) -> None:
    narrow = copy.deepcopy(theirs(name, torch.bfloat16)).to(torch.bfloat16)
    model = ours(name, torch.bfloat16)
    mine, published = 0.0, 0.0
    for seed in range(6):
        tokens = prompt(60, seed)
        wanted = their_logits(name, tokens, torch.bfloat16)[-1:]
        with torch.no_grad():
            published += apart(narrow(tokens[None], use_cache=False).logits[0, -1:], wanted)
        mine += apart(model.logits(hybrid_prefilled(model, tokens)[0]), wanted)
    assert mine <= 1.1 * published


def _silenced(kind: str) -> Decoder:
    """Only layers of the other kind mix anything in."""
    model = copy.deepcopy(ours("next"))
    for layer, its in zip(model.layers, model.config.layer_types, strict=True):
        if its == kind:
            layer.output.weight.data.zero_()
    return model


@pytest.mark.parametrize("kind", ["full_attention", "linear_attention"])
def test_one_ancestor_index_serves_both_kinds_of_layers(kind: str) -> None:
    model, tokens = _silenced(kind), prompt(30)
    _, held = hybrid_prefilled(model, tokens)
    right, wrong = Beams(model, held, (4, 4)), Beams(model, held, (4, 4))
    first, codes = torch.tensor([3, 50, 120, 7]), torch.tensor([9, 9, 9, 9])
    for beams in (right, wrong):
        beams.step(torch.zeros(4, dtype=torch.int64), first)
    anc = right.ancestors.fork(torch.tensor([1, 0, 3, 2]))
    assert anc.shape == (4, 2)
    corrupt = anc.clone()
    corrupt[0, 0] = 2
    good = model.step([right.at(codes, anc)])
    bad = model.step([wrong.at(codes, corrupt)])
    assert apart(bad[0], good[0]) > 1e-3
    assert torch.equal(bad[1:], good[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_prompts_with_strangers_equal_prompts_alone(dtype: torch.dtype) -> None:
    model = ours("next", dtype)
    prompts = [prompt(length, seed=length) for length in (1, 3, 17, 128, 150, 200)]
    held = [empty(model, 200) for _ in prompts]
    together = model.prefill([one.row(tokens) for one, tokens in zip(held, prompts, strict=True)])
    for tokens, row, one in zip(prompts, together, held, strict=True):
        hidden, alone = hybrid_prefilled(model, tokens)
        assert torch.equal(hidden[0], row)
        for layer in range(3):
            assert torch.equal(alone.state.state(layer), one.state.state(layer))
            assert torch.equal(alone.state.rows(layer), one.state.rows(layer))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_beams_with_strangers_equal_beams_alone(dtype: torch.dtype) -> None:
    model, widths = ours("next", dtype), (1, 2, 7, 50, 130)

    def beams(width: int) -> Beams:
        return Beams(model, hybrid_prefilled(model, prompt(width + 5, seed=width))[1], (width, width))

    def step(all_of: list[Beams], seed: int, first: bool) -> Tensor:
        rows = []
        for one in all_of:
            width = one.width
            parents = torch.zeros(width, dtype=torch.int64) if first else torch.arange(width) // 2
            rows.append(one.rows(parents, prompt(width, seed=seed)))
        return model.step(rows)

    together, alone = [beams(width) for width in widths], [beams(width) for width in widths]
    for first in (True, False):
        parts = [step([one], 9 + first, first) for one in alone]
        assert torch.equal(step(together, 9 + first, first), torch.cat(parts))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_share_their_products_agree_with_rows_alone(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What devices other than a CPU do."""
    model = ours("next", dtype)
    prompts = [prompt(length, seed=length) for length in (40, 3, 130)]

    def run() -> list[Tensor]:
        held = [empty(model, 200) for _ in prompts]
        model.remember([one.row(t[:2]) for one, t in zip(held, prompts, strict=True)])
        hidden = model.prefill([one.row(t[2:]) for one, t in zip(held, prompts, strict=True)])
        beams = [Beams(model, one, (4 + i,)) for i, one in enumerate(held)]
        rows = [one.rows(torch.zeros(4 + i, dtype=torch.int64), prompt(4 + i)) for i, one in enumerate(beams)]
        return [hidden, model.step(rows)]

    alone = run()
    monkeypatch.setattr(Decoder, "_groups", lambda self, rows: [rows])
    for together, apart_rows in zip(run(), alone, strict=True):
        assert together.shape == apart_rows.shape
        assert apart(together, apart_rows) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_prompt_has_the_same_bits_if_it_is_cut_at_whole_chunks(
    dtype: torch.dtype, data: st.DataObject
) -> None:
    model = ours("next", dtype)
    length = data.draw(st.integers(65, 270))
    cuts = data.draw(st.sets(st.sampled_from(range(64, length, 64)), max_size=3))
    tokens = prompt(length, seed=5)
    whole, kept = hybrid_prefilled(model, tokens)
    cut, rebuilt = hybrid_prefilled(model, tokens, tuple(sorted(cuts)))
    assert torch.equal(whole, cut)
    for layer in range(3):
        assert torch.equal(kept.state.state(layer), rebuilt.state.state(layer))
        assert torch.equal(kept.state.rows(layer), rebuilt.state.rows(layer))


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_cuts_agree(data: st.DataObject) -> None:
    model = ours("next")
    length = data.draw(st.integers(2, 150))
    cuts = data.draw(st.sets(st.integers(1, length - 1), max_size=5))
    tokens = prompt(length, seed=6)
    whole, kept = hybrid_prefilled(model, tokens)
    cut, rebuilt = hybrid_prefilled(model, tokens, tuple(sorted(cuts)))
    assert apart(cut, whole) <= 1e-5
    for layer in range(3):
        assert apart(rebuilt.state.state(layer), kept.state.state(layer)) <= 1e-5


def test_a_state_is_not_cut_back_and_a_failed_pass_leaves_it_as_it_was() -> None:
    model, tokens = ours("next-ends-linear"), prompt(40)
    _, held = hybrid_prefilled(model, tokens)
    with pytest.raises(ValueError, match="cannot be cut back"):
        PromptRow(tokens, 0, held.kv, held.state)
    before = held.state.copy()
    with pytest.raises(ValueError, match="max_positions"):
        model.prefill([held.row(prompt(2000))])
    with pytest.raises(ValueError):  # the first layer is through before the store is found too small
        model.prefill([held.row(prompt(100))])
    assert held.state.tokens == 40
    for layer in range(2):
        assert torch.equal(before.state(layer), held.state.state(layer))
        assert torch.equal(before.rows(layer), held.state.rows(layer))


def test_what_a_hybrid_model_needs_is_asked_for() -> None:
    model = ours("next")
    held = hybrid_prefilled(model, prompt(5))[1]
    with pytest.raises(ValueError, match="state"):
        model.prefill([PromptRow(prompt(3), 0, held.kv)])
    with pytest.raises(ValueError, match="records"):
        model.state_beams(held.state)
    with pytest.raises(ValueError, match="no linear layers"):
        ours("qwen3").state_beams(held.state)
    assert ours("qwen3").empty_state() is None
    beams = Beams(model, held, (2,))
    beams.linear = None  # type: ignore[assignment]
    with pytest.raises(ValueError, match="linear"):
        beams.step(torch.zeros(2, dtype=torch.int64), prompt(2))
