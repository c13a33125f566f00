"""What was seen is denied item by item inside the search: against brute force over plain sets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from search_cases import Corpus, TableModel, corpus, plan_of, search_of

from relaygr.core.clock import MonotonicClock
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.filters import Wanted, make_filter
from relaygr.generation.catalogue.index import CatalogueIndex, Int32s, ItemId
from relaygr.generation.catalogue.named import NamedFilters
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.normalise import Normalization
from relaygr.generation.reference import Row, Sid, brute_force
from relaygr.generation.results import Found, ItemLimits, Underflow
from relaygr.generation.rounds import Rounds

NONE = np.zeros(0, np.int32)


@dataclass
class Case:
    """A request's lists; `kept` are the items that they leave, by set arithmetic."""

    wanted: Wanted
    kept: set[ItemId]
    withdrawn: Int32s


def cases(index: CatalogueIndex, seed: int) -> list[Case]:
    """Histories of few, most and all items, with unknown and repeated ones, beside every other list."""
    rng = np.random.default_rng(seed)
    ids = [index.ids_of(np.array([one]))[0] for one in rng.permutation(np.unique(index.items)).tolist()]
    unknown: list[ItemId] = [10**6, 10**6 + 1] if index.names is None else ["nobody knows", ""]
    flags = index.flag("fresh")
    fresh = {one for one, flag in zip(index.ids_of(index.items), flags.tolist(), strict=True) if flag}
    third, known = len(ids) // 3, set(ids)
    gone = index.positions_of("items", ids[-2:])
    found = []
    for seen in ([], ids[:1], ids[: 2 * third], ids[2:], ids):
        history = [*seen, *seen[:3], *unknown]
        left = known - set(seen)
        found += [
            Case(Wanted(seen=history), left, NONE),
            Case(Wanted(seen=history, deny=ids[third:]), left - set(ids[third:]), NONE),
            Case(Wanted(seen=history, allow=[*ids[:third], *unknown]), left & set(ids[:third]), NONE),
            Case(Wanted(seen=history, filters=("fresh",)), left & fresh, gone),
        ]
        found[-1].kept -= set(ids[-2:])
    return found


def shared(seed: int, sizes: tuple[int, ...], n: int, strings: bool) -> Corpus:
    """Several items share an id, and some items stand under two."""
    of = corpus(seed, sizes, n)
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 3 * n // 4, n)
    codes = np.stack([(size * rng.random(n) ** 3).astype(np.int64) for size in sizes], axis=1)
    # A flag is an item's, wherever it stands.
    rows = Rows(
        item_ids=[f"item-{one}" for one in numbers] if strings else numbers,
        codes=codes,
        flags={"fresh": numbers % 3 > 0},
    )
    index = build_index(rows, sizes, allow_multi_sid=True).index
    if index.names is not None:
        index.names.prepare()
    return replace(of, index=index)


def expected(of: Corpus, model: TableModel, prompt: int, widths: list[int], mode: Any, kept: set[ItemId]):
    """Rows and their items over the ids that `kept` names, each looked up in the catalogue one by one."""
    items = {sid: [one for one in of.index.item_ids(leaf) if one in kept] for leaf, sid in enumerate(of.sids)}
    left = [sid for sid, found in items.items() if found]

    def logits_of(prefix: Sid) -> Row:
        return model.row(prompt, tuple(of.tables[level][code] for level, code in enumerate(prefix)))

    rows = brute_force(left, logits_of, of.tables, widths, mode)
    return [(sid, score, items[sid]) for sid, score in rows], left


def run(model: TableModel, *searches: Any) -> list[Found]:
    Rounds(model, MonotonicClock()).run(searches)
    outcomes = [search.outcome for search in searches]
    assert all(isinstance(outcome, Found) for outcome in outcomes), outcomes
    return outcomes


@pytest.mark.parametrize("strings", [False, True], ids=["numbers", "strings"])
@pytest.mark.parametrize("seed", range(3))
def test_equals_brute_force_without_what_was_seen(seed: int, strings: bool) -> None:
    of = shared(seed, ((6, 7, 5), (3, 9, 4, 4), (12, 2))[seed], (60, 150, 40)[seed], strings)
    model, named, modes = TableModel(of.vocab_size), NamedFilters(), list(Normalization)
    levels, siblings = of.index.levels, 0
    limits = ItemLimits(1000, 10_000, False)
    for number, case in enumerate(cases(of.index, seed)):
        found_filter = make_filter(of.index, case.wanted, named=named, withdrawn=case.withdrawn)
        mode = modes[number % len(modes)]
        for prompt, widths in enumerate(([1] * levels, [3, 2, 5, 4][:levels], [1000] * levels)):
            plan = plan_of(of, widths, mode, found_filter, limits=limits)
            found = run(model, search_of(plan, prompt))[0]
            wanted, left = expected(of, model, prompt, widths, mode, case.kept)
            assert [(row.sid, list(row.items)) for row in found.rows] == [
                (sid, items) for sid, _, items in wanted
            ]
            np.testing.assert_allclose(
                [row.score for row in found.rows], [score for _, score, _ in wanted], rtol=0, atol=1e-5
            )
            if len(wanted) < widths[-1]:
                exhausted = len(wanted) == len(left)
                assert found.underflow is (
                    Underflow.CATALOG_EXHAUSTED if exhausted else Underflow.BEAM_EXHAUSTED
                )
            for row in found.rows:
                leaf = of.index.find_leaf(row.sid)
                assert leaf is not None
                siblings += len(row.items) < len(of.index.item_ids(leaf))
    # Ids that lost an item and were found by what is left.
    assert siblings > 10


def test_only_the_seen_item_of_an_id_is_lost_and_it_is_lost_under_every_id() -> None:
    rows = Rows(item_ids=np.array([1, 2, 1, 3]), codes=np.array([[0], [0], [1], [2]]))
    index = build_index(rows, (3,), allow_multi_sid=True).index
    found = make_filter(index, Wanted(seen=np.array([1, 77, 1])))
    assert found.alive(1, np.arange(3)).tolist() == [True, False, True]
    assert index.ids_at(found.allowed_items(0)) == [2]
    assert not found.everything
    assert make_filter(index, Wanted(seen=[77])).everything
    assert not make_filter(index, Wanted(seen=[1, 2, 3])).alive(0, np.array([0])).any()
