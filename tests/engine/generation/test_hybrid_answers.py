"""A generator with linear layers: the same bits whatever was cached, and restarts where they have to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from generate_rig import ITEMS, SIZES, catalogue, installed, of_tokens, of_user, one, rows, run
from hybrid_rig import GRAIN, KINDS, audit, hybrid_decoder, hybrid_generator, shelf_of

from relaygr.core.ids import Fingerprint
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.prompts import Asked
from relaygr.generation.requests import GenerateRequest

PER_ITEM = len(SIZES) + 1


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50, length).tolist()


def fresh(asked: Asked, kind: str = "hybrid", **more: Any) -> Any:
    """What a request gets where nothing was before it."""
    backend = hybrid_generator(kind=kind, **more)
    found = rows(one(backend, asked))
    backend.close()
    return found


def mixed() -> list[Asked]:
    return [
        of_tokens(prompt(1, 200), beam_width=1, request_id="a"),
        of_tokens(prompt(2, 7), beam_width=[2, 16, 5], request_id="b", seed=3),
        of_user("u", list(range(40)), beam_width=13, normalization="full"),
        Asked(request=GenerateRequest(history=[5, 6, 7], beam_width=4, deny=[1, 2, 3], request_id="c")),
        of_tokens(prompt(3, 256), beam_width=32, num_results=5, request_id="d", normalization="valid"),
    ]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_scores_are_those_of_whole_rows_without_a_cache(kind: str) -> None:
    backend, tokens = hybrid_generator(kind=kind), prompt(4, 130)
    for _ in range(2):
        found = one(backend, of_tokens(tokens, beam_width=6, normalization="full")).result.found
        for row in found.rows:
            codes = [8 + 16 * level + code for level, code in enumerate(row.sid)]
            with torch.no_grad():
                whole = torch.tensor([tokens + codes[:-1]])
                scores = hybrid_decoder(kind).train_logits(whole)[0].double().log_softmax(-1)
            wanted = sum(float(scores[len(tokens) - 1 + level, code]) for level, code in enumerate(codes))
            assert row.score == pytest.approx(wanted, abs=1e-4)
    backend.close()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_strangers_and_what_was_cached_change_no_bit(kind: str) -> None:
    asked = mixed()
    alone = [fresh(request, kind) for request in asked]
    together = hybrid_generator(kind=kind)
    assert [rows(answer) for answer in run(together, asked)] == alone
    warm = run(together, asked)
    assert [rows(answer) for answer in warm] == alone
    assert [one.result.cached_tokens for one in warm] == [one.result.prompt_tokens for one in warm]
    assert [rows(one(together, request)) for request in reversed(asked)] == alone[::-1]
    audit(together)
    together.close()


@pytest.mark.parametrize("chunk", [1, 64, 100, 256])
def test_chunks_of_a_prompt_with_a_state_change_no_bit(chunk: int) -> None:
    asked = [of_tokens(prompt(5, 180)), of_tokens(prompt(6, 9))]
    cut = hybrid_generator({"prefill_chunk_tokens": chunk})
    assert [rows(answer) for answer in run(cut, asked)] == [fresh(request) for request in asked]
    cut.close()


def test_a_grown_history_goes_on_from_its_last_chunk() -> None:
    backend = hybrid_generator()
    items = np.random.default_rng(7).integers(0, ITEMS, 90).tolist()
    for count in (3, 20, 31, 32, 60, 61, 90):
        before = shelf_of(backend).stats()
        answer = one(backend, of_user("u", items[:count]))
        tokens = 2 + count * PER_ITEM + 1
        assert answer.result.prompt_tokens == tokens
        assert rows(answer) == fresh(of_user("u", items[:count]))
        # The last token of the prompt before was its suffix, and is not in this one.
        after = shelf_of(backend).stats()
        assert after.saved_tokens - before.saved_tokens == answer.result.cached_tokens
        assert answer.result.cached_tokens % GRAIN == 0
        last = {3: 0, 20: 0, 31: 64, 32: 64, 60: 128, 61: 192, 90: 192}[count]
        assert answer.result.cached_tokens == last
        audit(backend)
    again = one(backend, of_user("u", items))
    assert again.result.cached_tokens == again.result.prompt_tokens
    assert dict(shelf_of(backend).stats().restarts) == {"end": 1, "snapshot": 5, "start": 2}
    backend.close()


@pytest.mark.parametrize(("changed", "restart"), [(250, 192), (130, 128), (127, 64), (70, 64), (10, 0)])
def test_an_edit_restarts_at_the_last_snapshot_before_it(changed: int, restart: int) -> None:
    backend, tokens = hybrid_generator({"state_snapshots": 8}), prompt(8, 260)
    one(backend, Asked(request=GenerateRequest(token_ids=tokens[:4] + tokens[4:], beam_width=4)))
    edited = [*tokens]
    edited[changed] = (edited[changed] + 1) % 50
    answer = one(backend, of_tokens(edited))
    assert answer.result.cached_tokens == (restart if changed >= 8 else 0)
    assert rows(answer) == fresh(of_tokens(edited))
    # What was behind the change is gone with its keys and values.
    kept = [one for held in shelf_of(backend)._kept.values() for one in held.snapshots]
    assert sorted({one.tokens for one in kept}) == [64, 128, 192, 256, 260]
    assert rows(one(backend, of_tokens(edited))) == rows(answer)
    audit(backend)
    backend.close()


def test_a_shorter_prompt_and_its_longer_one_leave_each_other_alone() -> None:
    backend, tokens = hybrid_generator({"state_snapshots": 8}), prompt(9, 250)
    longer = rows(one(backend, of_tokens(tokens)))
    shorter = one(backend, of_tokens(tokens[:150]))
    assert shorter.result.cached_tokens == 128
    assert rows(shorter) == fresh(of_tokens(tokens[:150]))
    again = one(backend, of_tokens(tokens))
    assert again.result.cached_tokens == 250
    assert rows(again) == longer
    audit(backend)
    backend.close()


def test_two_at_once_of_one_prompt_and_a_wider_one_later() -> None:
    backend, tokens = hybrid_generator(), prompt(10, 150)
    pair = [of_tokens(tokens, request_id="a"), of_tokens(tokens, request_id="b", beam_width=3)]
    for _ in range(3):
        answers = run(backend, pair)
        assert [rows(answer) for answer in answers] == [fresh(request) for request in pair]
        audit(backend)
    backend.close()


def test_other_catalogues_and_other_weights_have_states_of_their_own() -> None:
    catalogues = installed(catalogue())
    backend = hybrid_generator(catalogues=catalogues)
    asked = of_user("u", list(range(40)))
    first = one(backend, asked)
    catalogues.install(catalogue(1))
    second = one(backend, asked)
    assert second.result.catalog_version == catalogue(1).label
    assert second.result.cached_tokens < second.result.prompt_tokens
    assert rows(second) == fresh(asked, catalogues=installed(catalogue(1)))
    catalogues.rollback()
    assert rows(one(backend, asked)) == rows(first)
    # The same prompt by the content, of a model that is another.
    other = hybrid_decoder(seed=2)
    shelf, ref = shelf_of(backend), backend.check(asked).refs[0]
    assert shelf.reusable(ref, ref.tokens) == ref.tokens
    reloaded = hybrid_generator(decoder=other, model_fp=Fingerprint(b"o" * 16))
    foreign = reloaded.check(asked).refs[0]
    assert shelf.reusable(foreign, foreign.tokens) == 0
    reloaded._states.shelf = shelf  # even where the shelf survives
    assert reloaded.need(reloaded.check(asked)).tokens == foreign.tokens
    reloaded.close()
    backend.close()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_bytes_are_those_of_the_formula(kind: str) -> None:
    backend = hybrid_generator(kind=kind)
    layout = hybrid_decoder(kind).config.recurrent_layout(torch.float32)
    assert layout is not None
    for width, fed in ((4, (4, 4)), ([4, 8, 3], (4, 8))):
        ask = backend.check(of_tokens(prompt(11, 100), beam_width=width))
        seat = backend.seat(ask)
        assert seat is not None
        stats = backend.stats()
        assert stats.beam_bytes == seat.kv.unshared + seat.kv.records
        assert stats.states is not None
        assert stats.states.working == seat.kv.state
        while seat.outcome is None:
            (backend.round if seat.prefilled else backend.prefill)([seat])
        assert seat.kv == ask.use
        assert seat.kv.state + seat.kv.records == layout.request_bytes(fed).total
        assert seat.memory is not None
        assert seat.memory.records is not None
        assert (seat.memory.records.written_bytes, seat.memory.records.moved_bytes) == (seat.kv.records, 0)
        seat.close()
        ask.close()
    after = backend.stats()
    assert after.beam_bytes == 0
    assert after.states is not None
    assert after.states.working == 0
    room = backend.memory
    total = room.device.pages + room.device.states
    assert total == backend.config.device_bytes
    assert after.states.free + after.states.kept <= room.device.states
    backend.close()


def test_a_half_width_model_keeps_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = hybrid_decoder().config.linear
    assert linear is not None
    model = type(hybrid_decoder())(hybrid_decoder().config, hybrid_decoder().kernel).init_weights(3, 0.3)
    model = model.cast(torch.bfloat16).eval().requires_grad_(False)
    backend, tokens = hybrid_generator(decoder=model), prompt(12, 150)
    first = one(backend, of_tokens(tokens))
    one(backend, of_tokens([*tokens, 3, 4, 5]))
    alone: Generator = hybrid_generator(decoder=model)
    grown = [*tokens, 3, 4, 5, 6]
    assert rows(one(backend, of_tokens(grown))) == rows(one(alone, of_tokens(grown)))
    assert rows(one(alone, of_tokens(tokens))) == rows(first)
    backend.close()
    alone.close()
