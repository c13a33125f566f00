"""Answers of a real decoder: as brute force says, and the same whatever was cached and whoever ran beside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from generate_rig import (
    FIRST,
    ITEMS,
    SHAPE,
    SIZES,
    Asked,
    catalogue,
    dense_logits,
    generator,
    of_tokens,
    of_user,
    one,
    rows,
    run,
)

from relaygr.generation.normalise import Normalization
from relaygr.generation.reference import brute_force
from relaygr.generation.requests import GenerateRequest

BASES = [FIRST + sum(SIZES[:level]) for level in range(len(SIZES))]
TABLES = [list(range(base, base + size)) for base, size in zip(BASES, SIZES, strict=True)]
PER_ITEM = len(SIZES) + 1
KV_TOKEN = 2 * SHAPE.num_layers * SHAPE.num_kv_heads * SHAPE.head_dim * 4


def prompt(seed: int, tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, SHAPE.vocab_size, tokens).tolist()


def expected(tokens: list[int], widths: list[int], normalization: Normalization) -> list[tuple[Any, float]]:
    index = catalogue().index
    sids = [tuple(row) for row in index.sids(np.arange(index.n_sids)).tolist()]

    def logits(prefix: tuple[int, ...]) -> np.ndarray:
        return dense_logits([*tokens, *(BASES[level] + code for level, code in enumerate(prefix))])

    return list(brute_force(sids, logits, TABLES, widths, normalization))


@pytest.mark.parametrize("normalization", list(Normalization))
def test_answers_are_those_of_brute_force(normalization: Normalization) -> None:
    backend = generator()
    tokens = prompt(0, 30)
    found = rows(one(backend, of_tokens(tokens, beam_width=[3, 6, 9], normalization=normalization)))
    wanted = expected(tokens, [3, 6, 9], normalization)
    assert [sid for sid, _, _ in found] == [sid for sid, _ in wanted]
    np.testing.assert_allclose([score for _, score, _ in found], [score for _, score in wanted], atol=1e-5)
    backend.close()


def mixed() -> list[Asked]:
    return [
        of_tokens(prompt(1, 100), beam_width=1, request_id="a"),
        of_tokens(prompt(2, 7), beam_width=[2, 16, 5], request_id="b", seed=3),
        of_user("u", list(range(20)), beam_width=13, normalization="full"),
        Asked(request=GenerateRequest(history=[5, 6, 7], beam_width=4, deny=[1, 2, 3], request_id="c")),
        of_tokens(prompt(3, 200), beam_width=32, num_results=5, request_id="d", normalization="valid"),
    ]


def test_strangers_in_the_batch_change_no_bit_and_whoever_comes_again_gets_the_same_bits() -> None:
    asked, alone = mixed(), []
    for request in asked:
        backend = generator()
        alone.append(rows(one(backend, request)))
        backend.close()
    together = generator()
    assert [rows(answer) for answer in run(together, asked)] == alone
    warm = run(together, asked)
    assert [rows(answer) for answer in warm] == alone
    assert [answer.result.cached_tokens for answer in warm] == [
        answer.result.prompt_tokens for answer in warm
    ]
    assert [rows(one(together, request)) for request in reversed(asked)] == alone[::-1]
    together.close()


@pytest.mark.parametrize("chunk", [1, 3, 50, 256])
def test_chunks_of_a_prompt_change_no_bit(chunk: int) -> None:
    whole, cut = generator({"prefill_chunk_tokens": 256}), generator({"prefill_chunk_tokens": chunk})
    asked = [of_tokens(prompt(4, 60)), of_tokens(prompt(5, 9))]
    for found, wanted in zip(run(cut, asked), run(whole, asked), strict=True):
        assert rows(found) == rows(wanted)
    whole.close()
    cut.close()


def test_a_grown_history_computes_its_new_tokens_only() -> None:
    settings = {"prefill_chunk_tokens": 100}
    backend, fresh = generator(settings), generator(settings)
    items = np.random.default_rng(6).integers(0, ITEMS, 60).tolist()
    one(backend, of_user("u", items[:40]))
    longer = one(backend, of_user("u", items))
    # All but the suffix of the first prompt is its beginning.
    assert longer.result.cached_tokens == 2 + 40 * PER_ITEM
    assert longer.result.prompt_tokens == 2 + 60 * PER_ITEM + 1
    assert rows(longer) == rows(one(fresh, of_user("u", items)))
    again = one(backend, of_user("u", items))
    assert again.result.cached_tokens == again.result.prompt_tokens
    assert rows(again) == rows(longer)
    backend.close()
    fresh.close()


def test_without_the_last_hidden_state_one_token_is_computed_again_to_the_same_bits() -> None:
    backend = generator()
    asked = of_tokens(prompt(11, 200))
    first = one(backend, asked)
    ref = backend.check(asked).refs[0]
    backend._states.hiddens.forget(ref.tenant, ref.user)
    again = one(backend, asked)
    assert again.result.cached_tokens == 199
    assert rows(again) == rows(first)
    backend.close()


def test_the_window_jumps_seldom_and_finds_its_beginning_between_jumps() -> None:
    backend = generator()
    items = np.random.default_rng(7).integers(0, ITEMS, 150).tolist()
    lengths, cached = [], []
    for count in range(60, 150):
        answer = one(backend, of_user("u", items[:count], beam_width=2))
        lengths.append(answer.result.prompt_tokens)
        cached.append(answer.result.cached_tokens)
        if count in (87, 93, 116, 145, 148):
            fresh = generator()
            assert rows(answer) == rows(one(fresh, of_user("u", items[:count], beam_width=2)))
            fresh.close()
    assert max(lengths) <= 256
    # 63 items fit; a jump drops 32. What begins elsewhere has another identity.
    assert sum(1 for tokens in cached[1:] if not tokens) == 3
    dropped = one(backend, of_user("u", items[20:count], first=20, beam_width=2))
    assert dropped.result.cached_tokens == dropped.result.prompt_tokens
    backend.close()


def test_prompts_without_a_user_find_their_beginning_and_tenants_stay_apart() -> None:
    backend = generator()
    tokens = prompt(8, 60)
    one(backend, of_tokens(tokens[:40]))
    grown = one(backend, of_tokens(tokens))
    assert grown.result.cached_tokens == 40
    other = Asked(request=of_tokens(tokens).request, tenant="other")
    assert one(backend, other).result.cached_tokens == 0
    # Two at once that begin alike: the second is known by its whole content.
    pair = [of_tokens([*tokens, 5]), of_tokens([*tokens, 6, 7])]
    answers = run(backend, pair)
    assert [answer.result.cached_tokens for answer in answers] == [60, 0]
    for answer, request in zip(answers, pair, strict=True):
        fresh = generator()
        assert rows(answer) == rows(one(fresh, request))
        fresh.close()
    backend.close()


def test_bytes_are_those_of_the_formula() -> None:
    backend = generator()
    before = backend.stats()
    nodes = [catalogue().index.nodes(level) for level in (1, 2)]
    assert nodes[0] < 100 < nodes[1] < 300
    for width, fed in (
        (4, (4, 4)),
        (8, (8, 8)),
        ([4, 8, 3], (4, 8)),
        ([8, 4, 100], (8, 4)),
        # More beams than the catalogue has prefixes take no memory.
        (100, (nodes[0], 100)),
        ([2, 300, 300], (2, nodes[1])),
    ):
        tokens = prompt(9, 50)
        answer = one(backend, of_tokens(tokens, beam_width=width))
        kv = answer.kv
        page = backend.layout.page_bytes
        assert kv.unshared == KV_TOKEN * sum(fed)
        assert 0 <= kv.shared + kv.unshared - KV_TOKEN * (len(tokens) + sum(fed)) < page
        assert kv.index == 4 * max(fed) * len(fed)
        assert kv.scratch == 4 * max(fed) * max(SIZES)
    after = backend.stats()
    assert (after.seats, after.beam_bytes, after.scratch_bytes) == (0, 0, 0)
    assert before.pages.pinned_pages == after.pages.pinned_pages == 0
    backend.close()


@pytest.mark.parametrize("width", [1, 8, [4, 8, 3], [8, 4, 100], 300], ids=str)
def test_every_byte_of_beams_is_written_once(width: int | list[int]) -> None:
    backend = generator()
    ask = backend.check(of_tokens(prompt(9, 50), beam_width=width))
    seat = backend.seat(ask)
    assert seat is not None
    assert seat.beams is not None
    while seat.outcome is None:
        (backend.round if seat.prefilled else backend.prefill)([seat])
    assert (seat.beams.written_bytes, seat.beams.moved_bytes) == (seat.kv.unshared, 0)
    assert seat.kv.unshared == ask.use.unshared == KV_TOKEN * sum(ask.plan.widths.fed)
    seat.close()
    ask.close()
    backend.close()
