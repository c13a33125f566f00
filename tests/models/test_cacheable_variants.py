"""H3: `cacheable` of every combination of switches is what running the model shows of its K/V."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace as with_columns
from typing import Any

import pytest
import torch
from formulas.maths import Row
from msgspec.structs import replace
from variant_cases import META, META_AGES, NVIDIA_BASE, RELAY, RESEARCH, TRANSFORMER, random_model, row_input

from relaygr.kernels.reference import ReferenceKernel
from relaygr.memory.layout import KvLayout
from relaygr.memory.stores import PrivateKv
from relaygr.models.config import Cacheable
from relaygr.models.presets import AnyConfig
from relaygr.models.ranker import Ranker
from relaygr.models.switches import Table

SMALL: dict[str, Any] = {
    "hidden_size": 8,
    "num_layers": 2,
    "num_heads": 1,
    "qk_dim": 8,
    "v_dim": 8,
    "embedding_dim": 8,
    "stack_size": 8,
    "head_size": 8,
}
PLACE = Table(name="place", rows=9)
SLOTS: dict[str, Any] = {"contextual": ("country", "city")}
TABLES: dict[str, Any] = {**SLOTS, "slot_tables": (PLACE, PLACE)}
WINDOWS: tuple[dict[str, Any], ...] = ({}, {"window": 5}, {"window": 5, "full_tail": 2})
APPENDS = ((0, 1), (4, 9), (20, 25))  # events before and after
MIN_HISTORY = 7  # crossed by the second append


def products(base: AnyConfig, *switches: tuple[dict[str, Any], ...]) -> Iterator[AnyConfig]:
    """All combinations of one choice from each switch."""
    for choice in itertools.product(*switches):
        yield replace(base, **SMALL, **{key: value for part in choice for key, value in part.items()})


BOTH: tuple[dict[str, Any], ...] = ({"contextual_two_way": False}, {"contextual_two_way": True})
TIMES: tuple[dict[str, Any], ...] = ({"query_times": "request"}, {"query_times": "candidate"})
FAMILIES: dict[str, list[AnyConfig]] = {
    "relay": list(
        products(
            RELAY,
            ({}, SLOTS),
            BOTH,
            WINDOWS,
            ({}, {"score_time_bias": True, "last_seen": True}, {"position_buckets": 0}),
            TIMES,
        )
    ),
    "meta_stu": [
        *products(
            META,
            ({}, {"position": "backward_time", "time_buckets": 900}),
            ({}, TABLES, {**TABLES, "slot_min_history": (0, MIN_HISTORY)}),
            BOTH,
            WINDOWS,
            TIMES,
        ),
        *products(
            replace(META_AGES, time_buckets=900),
            ({"action_mode": "none", "action_weights": ()},),
            ({"postprocess": "l2"}, {}),
            TIMES,
        ),
    ],
    "nvidia": list(
        products(
            NVIDIA_BASE,
            ({}, TABLES, {**TABLES, "slot_mlp": 8}),
            BOTH,
            WINDOWS,
            ({}, {"action_mode": "none", "actions": None}),
            ({}, {"token_mlp": 8, "position_buckets": 0}),
            TIMES,
        )
    ),
    "meta_research": [
        *(
            replace(RESEARCH, **SMALL, layer=replace(RESEARCH.layer, relative_bias=bias, concat=concat))
            for bias in ("none", "position", "position_time")
            for concat in ("gate", "u_z_y")
        )
    ],
    "transformer": list(
        products(
            TRANSFORMER,
            ({}, SLOTS),
            ({}, {"window": 5}),
            ({}, {"qk_norm": False}),
            ({}, {"last_seen": True}),
            TIMES,
        )
    ),
}


def user(config: AnyConfig) -> Row:
    """25 events some minutes to days apart; the row of any shorter history is its beginning."""
    gaps = [30, 4_000, 90_000, 500, 700_000]
    times = [1_700_000_000 + sum(gaps[i % 5] for i in range(event)) for event in range(25)]
    items = [1 + event * 7 % 59 for event in range(25)]
    return Row([3, 5][: len(config.contextual)], items, times, [1, 6, 0, 7, 4] * 5, [], 0)


def keys_and_values(model: Ranker, row: Row, events: int, query_time: int, tokens: int) -> torch.Tensor:
    """K/V of the first `tokens` of a row of `events`, all layers, as a pass with a candidate leaves them."""
    config = model.config
    layout = KvLayout(config.num_layers, config.num_heads, config.qk_dim, config.v_dim, torch.float64, 8)
    store = PrivateKv(layout, 64)
    part = {name: getattr(row, name)[:events] for name in ("items", "times", "actions")}
    asked = with_columns(row, **part, candidates=[1], query_time=query_time)
    with torch.inference_mode():
        model([row_input(asked, store=store)], ReferenceKernel())
    both = [torch.cat(store.read(layer, tokens), -1)[:, :tokens] for layer in range(config.num_layers)]
    return torch.stack(both)


def shown(config: AnyConfig) -> Cacheable:
    """What the K/V of a random model allow."""
    model, row = random_model(config).double(), user(config)
    after, rewrites, asks = row.times[-1], False, False
    for before, longer in APPENDS:
        tokens = config.prefix_tokens(before)
        kept, appended, later = (
            keys_and_values(model, row, events, query, tokens)
            for events, query in ((before, after), (longer, after), (before, after + 500_000))
        )
        rewrites |= not torch.allclose(kept, appended, rtol=0, atol=1e-12)
        asks |= not torch.allclose(kept, later, rtol=0, atol=1e-12)
    if asks:
        # Candidates of one request may then stand at different query times, with K/V of their own each.
        return "none" if config.query_times == "candidate" else "request"
    return "request" if rewrites else "append"


@pytest.mark.parametrize("family", FAMILIES)
def test_cacheable_is_what_the_model_shows(family: str) -> None:
    kinds = set()
    for config in FAMILIES[family]:
        assert config.cacheable == shown(config), config
        kinds.add(config.cacheable)
    assert (
        kinds
        == {
            "relay": {"append", "request"},
            "meta_stu": {"append", "request", "none"},
            "nvidia": {"append", "request"},
            "meta_research": {"append"},
            "transformer": {"append"},
        }[family]
    )


def test_exactly_the_newest_row_of_meta_research_is_provisional() -> None:
    """The row of the newest event reads the time that follows it; the rows before it do not."""
    config = replace(RESEARCH, **SMALL)
    assert config.provisional == 1
    model, row = random_model(config).double(), user(config)
    moved = with_columns(row, times=[*row.times[:20], *(time + 90_000 for time in row.times[20:])])
    near, far = (keys_and_values(model, r, 25, row.times[-1] + 90_000, 20) for r in (row, moved))
    same = [torch.equal(near[:, :, token], far[:, :, token]) for token in range(20)]
    assert same == [True] * 19 + [False]
    assert config.prefix_tokens(20) == 19
    assert [config.prefix_tokens(events) for events in (0, 1, 2)] == [0, 0, 1]


@pytest.mark.parametrize("config", [RELAY, META, NVIDIA_BASE, TRANSFORMER])
def test_other_families_have_no_provisional_rows(config: AnyConfig) -> None:
    assert config.provisional == 0
    assert config.prefix_tokens(20) == 20 * config.tokens_per_event
