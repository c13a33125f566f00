"""Requests that exclude what was seen: the whole history, by brute force, alone and beside strangers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from generate_rig import (
    FIRST,
    ITEMS,
    SIZES,
    Asked,
    catalogue,
    dense_logits,
    generator,
    of_user,
    one,
    rows,
    run,
)

from relaygr.engine.generation.seats import Generated
from relaygr.generation.catalogue.filters import AllowFilter, DenyFilter
from relaygr.generation.errors import ErrorCode, GenerateError
from relaygr.generation.normalise import Normalization
from relaygr.generation.reference import brute_force
from relaygr.generation.requests import GenerateRequest

BASES = [FIRST + sum(SIZES[:level]) for level in range(len(SIZES))]
TABLES = [list(range(base, base + size)) for base, size in zip(BASES, SIZES, strict=True)]
# A prompt of 256 tokens has 63 items of these.
LONG = np.random.default_rng(0).permutation(ITEMS)[:300].tolist()


def of_items(items: list[int], **more: Any) -> Asked:
    return Asked(request=GenerateRequest(history=items, **{"beam_width": 8, "exclude_seen": True, **more}))


def expected(tokens: list[int], widths: list[int], kept: set[int]) -> list[tuple[Any, float, list[Any]]]:
    index = catalogue().index
    items = {
        tuple(sid): [item for item in index.item_ids(leaf) if item in kept]
        for leaf, sid in enumerate(index.sids(np.arange(index.n_sids)).tolist())
    }

    def logits(prefix: tuple[int, ...]) -> np.ndarray:
        return dense_logits([*tokens, *(BASES[level] + code for level, code in enumerate(prefix))])

    found = brute_force(
        [sid for sid, left in items.items() if left], logits, TABLES, widths, Normalization.LEVEL
    )
    return [(sid, score, items[sid]) for sid, score in found]


@pytest.mark.parametrize(
    ("seen", "more", "kept"),
    [
        (LONG, {}, set(range(ITEMS)) - set(LONG)),
        ([*LONG[:70], 10**6, LONG[0]], {"deny": LONG[60:120]}, set(range(ITEMS)) - set(LONG[:120])),
        (LONG[:200], {"allow": LONG[150:210]}, set(LONG[200:210])),
    ],
    ids=["longer than the prompt", "with deny", "within allow"],
)
def test_answers_are_those_of_brute_force(seen: list[int], more: dict[str, Any], kept: set[int]) -> None:
    backend = generator()
    asked = of_items(seen, beam_width=[3, 6, 9], **more)
    ask = backend.check(asked)
    tokens = ask.prompt.tokens.tolist()
    assert len(tokens) < 4 * len(seen)
    ask.close()
    found = rows(one(backend, asked))
    wanted = expected(tokens, [3, 6, 9], kept)
    assert [(sid, list(items)) for sid, _, items in found] == [(sid, items) for sid, _, items in wanted]
    np.testing.assert_allclose([row[1] for row in found], [row[1] for row in wanted], rtol=0, atol=1e-5)
    backend.close()


def test_a_users_events_before_the_history_count_where_they_are_known() -> None:
    backend = generator()
    window = LONG[200:]
    known = of_user("u", window, first=200, exclude_seen=True, beam_width=64)
    whole = replace(known, seen=np.array(LONG[:200]))
    listed = replace(known, request=replace(known.request, exclude_seen=False, deny=LONG))
    shorter = replace(known, request=replace(known.request, exclude_seen=False, deny=window))
    assert rows(one(backend, whole)) == rows(one(backend, listed)) != rows(one(backend, known))
    assert rows(one(backend, known)) == rows(one(backend, shorter))
    # Without being asked to, nothing is left out.
    plain = replace(whole, request=replace(known.request, exclude_seen=False))
    named = {item for _, _, items in rows(one(backend, plain)) for item in items}
    assert named & set(LONG)
    backend.close()


def test_strangers_in_the_batch_change_no_bit() -> None:
    asked = [
        of_items(LONG, request_id="a"),
        of_items(LONG[:70], beam_width=13, request_id="b", normalization="valid"),
        of_user("u", LONG[:90], exclude_seen=True, beam_width=[2, 16, 5], seed=3),
        of_user("v", LONG[:90], beam_width=8),
        of_items(LONG[5:9], deny=LONG[100:], request_id="c", num_results=40),
    ]
    alone = []
    for request in asked:
        backend = generator()
        alone.append(rows(one(backend, request)))
        backend.close()
    together = generator()
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        found = run(together, [asked[at] for at in order])
        assert [rows(answer) for answer in found] == [alone[at] for at in order]
    together.close()


def test_everything_seen_leaves_an_empty_answer() -> None:
    backend = generator()
    found = one(backend, of_items(list(range(ITEMS)))).result.found
    assert (found.rows, found.returned, found.underflow) == ((), 0, "catalog_exhausted")
    backend.close()


def test_the_history_counts_for_no_limit_of_lists() -> None:
    backend = generator({"max_filter_items": 5})
    assert isinstance(run(backend, [of_items(LONG)])[0], Generated)
    with pytest.raises(GenerateError) as caught:
        backend.check(of_items(LONG, deny=LONG[:6]))
    assert (caught.value.field, caught.value.limit) == ("deny", 5)
    backend.close()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"token_ids": [1]}, "exclude_seen"),
        ({"text": "hello"}, "exclude_seen"),
        ({"history": [1], "exclude_seen": 1}, "exclude_seen"),
    ],
)
def test_what_names_no_items_has_nothing_to_exclude(given: dict[str, Any], field: str) -> None:
    with pytest.raises(GenerateError) as caught:
        GenerateRequest(**{"exclude_seen": True, "request_id": "r", **given})
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_REQUEST, field)


def test_an_item_of_another_kind_is_named_by_its_place_in_the_whole_history() -> None:
    backend = generator()
    with pytest.raises(GenerateError) as caught:
        backend.check(of_items([*LONG[:2], "x", *LONG]))  # type: ignore[list-item]
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_REQUEST, "history[2]")
    assert backend.catalogues.status().pins == 0
    backend.close()


def test_requests_that_wait_hold_places_and_not_the_seen_items() -> None:
    backend = generator()
    ask = backend.check(replace(of_user("u", LONG[:70], exclude_seen=True), seen=np.array(LONG)))
    assert ask.asked.seen is None
    assert ask.plan is not None
    assert isinstance(ask.plan.items, DenyFilter)
    assert len(ask.plan.items.dropped) == len(LONG)
    ask.close()
    few = backend.check(of_items(LONG, allow=[LONG[0], LONG[1]]))
    assert few.plan is not None
    assert isinstance(few.plan.items, AllowFilter)
    assert len(few.plan.items.chosen) == 0
    few.close()
    backend.close()
