"""A request's bits do not depend on its batch mates, nor on how its prompt was cut."""

from __future__ import annotations

import pytest
import torch
from decoder_cases import apart, ours, pool, prefilled, prompt, store
from hypothesis import given, settings
from hypothesis import strategies as st

from relaygr.memory.beams import BeamPool
from relaygr.memory.pool import PagePool
from relaygr.memory.stores import PagedKv
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.rows import BeamRows, PromptRow

DTYPES = [torch.float32, torch.bfloat16]
LENGTHS = (1, 3, 17, 128, 150, 200)
WIDTHS = (1, 2, 7, 50, 130)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_prompts_with_strangers_equal_prompts_alone(dtype: torch.dtype) -> None:
    model = ours("qwen3", dtype)
    prompts = [prompt(length, seed=length) for length in LENGTHS]
    together = model.prefill([PromptRow(tokens, 0, store(model, 200)) for tokens in prompts])
    for tokens, row in zip(prompts, together, strict=True):
        assert torch.equal(prefilled(model, tokens)[0][0], row)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_beams_with_strangers_equal_beams_alone(dtype: torch.dtype) -> None:
    model = ours("qwen3", dtype)
    slots = pool(model, 2 * sum(WIDTHS))

    def rows(width: int, slots: BeamPool) -> BeamRows:
        own = slots.reserve([width])
        assert own is not None
        _, kv = prefilled(model, prompt(width + 5, seed=width))
        anc = torch.arange(width, dtype=torch.int32)[:, None]
        return BeamRows(prompt(width, seed=9), width + 5, 1, kv, width + 5, own, anc)

    together = model.step([rows(width, slots) for width in WIDTHS])
    alone = [model.step([rows(width, slots)]) for width in WIDTHS]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_prompt_has_the_same_bits_in_whatever_chunks_it_comes(
    dtype: torch.dtype, data: st.DataObject
) -> None:
    model = ours("llama", dtype)
    length = data.draw(st.integers(2, 270))
    cuts = tuple(sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=4))))
    tokens = prompt(length, seed=5)
    whole, kept = prefilled(model, tokens)
    cut, rebuilt = prefilled(model, tokens, cuts)
    assert torch.equal(whole, cut)
    for layer in range(model.config.num_layers):
        for a, b in zip(kept.read(layer, length), rebuilt.read(layer, length), strict=True):
            assert torch.equal(a, b)


def test_nothing_asked_gives_nothing() -> None:
    model = ours("llama")
    assert model.prefill([]).shape == (0, 64)
    assert model.step([]).shape == (0, 64)
    model.remember([])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_share_their_products_agree_with_rows_alone(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What devices other than a CPU do."""
    model = ours("qwen3", dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    prompts = [prompt(length, seed=length) for length in (40, 3, 130)]

    def run() -> list[torch.Tensor]:
        stores = [store(model, 200) for _ in prompts]
        model.remember([PromptRow(t[:2], 0, kv) for t, kv in zip(prompts, stores, strict=True)])
        hidden = model.prefill([PromptRow(t[2:], 2, kv) for t, kv in zip(prompts, stores, strict=True)])
        slots, rows = pool(model, 30), []
        for width, (tokens, kv) in enumerate(zip(prompts, stores, strict=True), start=4):
            own = slots.reserve([width])
            assert own is not None
            anc = torch.arange(width, dtype=torch.int32)[:, None]
            place = len(tokens)
            rows.append(BeamRows(prompt(width), place, 1, kv, place, own, anc))
        return [hidden, model.step(rows)]

    alone = run()
    monkeypatch.setattr(Decoder, "_groups", lambda self, rows: [rows])
    for together, apart_rows in zip(run(), alone, strict=True):
        assert together.shape == apart_rows.shape
        assert apart(together, apart_rows) <= tolerance


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pages_of_a_pool_hold_the_same_bits(dtype: torch.dtype) -> None:
    model = ours("qwen3", dtype)
    tokens = prompt(150, seed=6)
    wanted, kept = prefilled(model, tokens)
    pages = PagePool(model.config.kv_layout(dtype, 16), pages=12)
    kv = PagedKv(pages, [7, 0, 1, 2, 3, 11, 10, 9, 8, 4], 160, clean_tail=True, filled=0)
    model.remember([PromptRow(tokens[:64], 0, kv)])
    assert torch.equal(model.prefill([PromptRow(tokens[64:], 64, kv)]), wanted)
    for layer in range(model.config.num_layers):
        for mine, theirs in zip(kv.read(layer, 150), kept.read(layer, 150), strict=True):
            assert torch.equal(mine[:, :150], theirs[:, :150])
