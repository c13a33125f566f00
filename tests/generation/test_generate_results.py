"""Rows, items and limits; requests, widths and errors."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from relaygr.core.errors import (
    BackendError,
    CancelledError,
    DeadlineError,
    NotReadyError,
    OverloadError,
    RequestError,
)
from relaygr.generation import errors
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.filters import Wanted, make_filter
from relaygr.generation.catalogue.index import CatalogueIndex
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.errors import ErrorCode, GenerateError, InvalidRequestError, TooWideError
from relaygr.generation.normalise import Normalization
from relaygr.generation.requests import ALIASES, GenerateRequest
from relaygr.generation.results import ItemLimits, rows_of
from relaygr.generation.select import Beams
from relaygr.generation.widths import Widths, resolve_widths

# Leaves (0, 0), (0, 1), (2, 0); items 5 and 1 stand under two of them.
ITEMS = [
    (5, (0, 0), 3),
    (9, (0, 0), 2),
    (1, (0, 0), 2),
    (5, (0, 1), 9),
    (7, (0, 1), 1),
    (1, (2, 0), 0),
    (3, (2, 0), 0),
]


def shared_index(strings: bool = False) -> CatalogueIndex:
    ids = [item for item, _, _ in ITEMS]
    rows = Rows(
        item_ids=[f"item-{one}" for one in ids] if strings else np.array(ids),
        codes=np.array([codes for _, codes, _ in ITEMS]),
        priority=np.array([priority for _, _, priority in ITEMS]),
    )
    return build_index(rows, (3, 2), allow_multi_sid=True).index


def beams_at(*leaves: int) -> Beams:
    count = len(leaves)
    return Beams(
        np.array(leaves),
        -np.arange(count, dtype=np.float64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        3,
        False,
        0,
    )


def items_of(index: CatalogueIndex, limits: ItemLimits, wanted: Wanted | None = None):
    items = None if wanted is None else make_filter(index, wanted)
    rows, left_out = rows_of(index, beams_at(1, 0, 2), limits, items)
    assert [row.sid for row in rows] == [(0, 1), (0, 0), (2, 0)]
    assert [row.score for row in rows] == [0.0, -1.0, -2.0]
    return [list(row.items) for row in rows], left_out


def test_items_are_best_first_by_priority_then_id() -> None:
    assert items_of(shared_index(), ItemLimits()) == ([[5, 7], [5, 1, 9], [1, 3]], 0)
    names = [["item-5", "item-7"], ["item-5", "item-1", "item-9"], ["item-1", "item-3"]]
    assert items_of(shared_index(strings=True), ItemLimits()) == (names, 0)


def test_both_limits_count_what_they_leave_out() -> None:
    assert items_of(shared_index(), ItemLimits(per_sid=1)) == ([[5], [5], [1]], 4)
    assert items_of(shared_index(), ItemLimits(total=4)) == ([[5, 7], [5, 1], []], 3)


def test_distinct_items_fill_up_behind_those_named_before() -> None:
    assert items_of(shared_index(), ItemLimits(distinct=True)) == ([[5, 7], [1, 9], [3]], 0)
    # 7 was left out under its only id; 5 takes no place of the second.
    assert items_of(shared_index(), ItemLimits(per_sid=1, distinct=True)) == ([[5], [1], [3]], 2)


def test_filtered_items_are_not_named() -> None:
    assert items_of(shared_index(), ItemLimits(), Wanted(deny=[1, 7])) == ([[5], [5, 9], [3]], 0)
    assert items_of(shared_index(), ItemLimits(per_sid=1), Wanted(deny=[5])) == ([[7], [1], [1]], 2)


def test_a_repeated_or_endless_row_never_gets_out() -> None:
    with pytest.raises(AssertionError, match="twice"):
        rows_of(shared_index(), beams_at(1, 1), ItemLimits(), None)
    endless = dataclasses.replace(beams_at(1), scores=np.array([-np.inf]))
    with pytest.raises(AssertionError, match="finite"):
        rows_of(shared_index(), endless, ItemLimits(), None)


def test_rows_are_plain_numbers_for_json() -> None:
    rows, _ = rows_of(shared_index(), beams_at(1, 0), ItemLimits(), None)
    text = json.dumps([dataclasses.asdict(row) for row in rows], allow_nan=False)
    assert json.loads(text)[0] == {"sid": [0, 1], "score": 0.0, "items": [5, 7]}


def test_widths_of_a_request() -> None:
    assert resolve_widths(8, None, 3, max_width=8) == Widths((8, 8, 8))
    mixed = resolve_widths([4, 6, 8], 2, 3, max_width=8)
    assert (mixed.rounds, mixed.fed, mixed.results, mixed.rows, mixed.of(2)) == ((4, 6, 2), (4, 6), 2, 6, 6)
    assert resolve_widths(4, 8, 1, max_width=8).rows == 1


@pytest.mark.parametrize(
    ("beam_width", "num_results", "field", "kind"),
    [
        (0, None, "beam_width", InvalidRequestError),
        (True, None, "beam_width", InvalidRequestError),
        ([4, 4], None, "beam_width", InvalidRequestError),
        ([4, -1, 4], None, "beam_width", InvalidRequestError),
        ([4, 4.0, 4], None, "beam_width", InvalidRequestError),
        (4, 0, "num_results", InvalidRequestError),
        (9, None, "beam_width", TooWideError),
        ([4, 9, 4], 2, "beam_width", TooWideError),
        (4, 9, "num_results", TooWideError),
    ],
)
def test_bad_widths_name_their_field(beam_width, num_results, field, kind) -> None:
    with pytest.raises(kind) as caught:
        resolve_widths(beam_width, num_results, 3, max_width=8, request_id="r")
    assert type(caught.value) is kind
    assert (caught.value.field, caught.value.request_id) == (field, "r")
    assert caught.value.limit == (8 if kind is TooWideError else None)


def test_a_request_has_defaults_and_takes_its_normalisation_by_name() -> None:
    request = GenerateRequest(token_ids=[1, 2], normalization="valid")
    assert request.normalization is Normalization.VALID
    assert GenerateRequest(text="x").normalization is Normalization.LEVEL
    assert (request.max_items, request.max_items_per_sid, request.seed) == (1000, 50, None)
    assert GenerateRequest(history=[]).history == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "token_ids"),
        ({"user": "u", "text": "x"}, "text"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, -1]}, "token_ids[1]"),
        ({"token_ids": [1, True]}, "token_ids[1]"),
        ({"text": ""}, "text"),
        ({"user": "u", "normalization": "top"}, "normalization"),
        ({"user": "u", "max_items": 0}, "max_items"),
        ({"user": "u", "max_items_per_sid": 1.5}, "max_items_per_sid"),
        ({"user": "u", "seed": -1}, "seed"),
        ({"user": "u", "seed": 1 << 63}, "seed"),
        ({"user": "u", "deadline_ms": 0}, "deadline_ms"),
        ({"user": "u", "deadline_ms": float("nan")}, "deadline_ms"),
        ({"user": "u", "filters": ["fresh", ""]}, "filters[1]"),
    ],
)
def test_bad_requests_name_their_field(fields, field) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        GenerateRequest(request_id="r", **fields)
    assert (caught.value.field, caught.value.request_id) == (field, "r")
    assert str(caught.value).startswith(f"{field}: ")


def test_aliases_stand_for_fields_of_a_request() -> None:
    names = {field.name for field in dataclasses.fields(GenerateRequest)}
    for alias in ("num_beams", "n", "top_k_for_generation"):
        assert ALIASES[alias] == "beam_width"
    for alias in ("num_return_sequences", "total_conversion_threshold", "each_conversion_threshold"):
        assert ALIASES[alias] in names


@pytest.mark.parametrize(
    ("name", "code", "base"),
    [
        ("InvalidRequestError", "invalid_request", RequestError),
        ("TooLongError", "too_long", RequestError),
        ("TooWideError", "too_wide", RequestError),
        ("KvBudgetError", "kv_budget", RequestError),
        ("QueueFullError", "queue_full", OverloadError),
        ("GenerateDeadlineError", "deadline", DeadlineError),
        ("GenerateCancelledError", "cancelled", CancelledError),
        ("CatalogUnavailableError", "catalog_unavailable", NotReadyError),
        ("FilterFailedError", "filter_error", BackendError),
        ("ModelNanError", "model_nan", BackendError),
        ("InternalError", "internal", BackendError),
    ],
)
def test_every_code_has_an_error_within_the_one_tree(name: str, code: str, base: type[Exception]) -> None:
    error = getattr(errors, name)("r", "why", field="f", limit=3, retry_after_ms=5.0)
    assert isinstance(error, base)
    assert isinstance(error, GenerateError)
    assert (error.code, error.request_id, error.field, error.limit, error.retry_after_ms) == (
        code,
        "r",
        "f",
        3,
        5.0,
    )
    assert (str(error), error.reason) == ("f: why", "why")
    assert code in list(ErrorCode)
