"""Features of logged lists are those that serving computes."""

from __future__ import annotations

import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.listwise import reference
from relaygr.listwise.pool import Head, HeadKind, Pool, Shown
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import Group, HeadSpec, StepConfig, StepModel
from relaygr.listwise.value import Factor, Term, ValueDocument, ValueFunction
from relaygr.training.slate.logs import Earlier, LoggedLists
from relaygr.training.slate.rows import context_of, training_rows

HEADS = (Head("like"), Head("watch_s", HeadKind.REGRESSION))
VALUE = ValueFunction(ValueDocument(id="v", terms=(Term(weight=1.0, factors=(Factor(head="like"),)),)), HEADS)
FEATURES = (
    "similarity:max",
    "similarity:mean",
    "count:topic",
    "recency:topic",
    "count:author",
    "position",
    "watch",
    "session",
    "page",
    "slot:1",
    "vector:2",
)
CONFIG = StepConfig(
    heads=tuple(HeadSpec(name=head.name, kind=head.kind) for head in HEADS),
    groups=(Group(name="all", features=FEATURES),),
    watch_head="watch_s",
)
MODEL = StepModel.zero(CONFIG)
N, L, P, DV = 5, 6, 4, 3


def vectors(random: np.random.Generator, *shape: int) -> np.ndarray:
    found = random.standard_normal((*shape, DV))
    return (found / np.linalg.norm(found, axis=-1, keepdims=True)).astype(np.float32)


def logged(pages: bool) -> LoggedLists:
    random = np.random.default_rng(4)
    there = np.arange(P) >= np.array([4, 3, 2, 1, 0])[:, None]  # 0 to 4 items of earlier pages
    earlier = Earlier(
        there=there,
        attributes={
            name: np.where(there, random.integers(-1, 3, (N, P)), -1) for name in ("topic", "author")
        },
        vectors=vectors(random, N, P),
        watch=random.uniform(0, 9, N) * there.any(axis=1),
    )
    outputs = random.standard_normal((N, L, 2)).astype(np.float32)
    outputs[..., 1] = np.exp(outputs[..., 1])
    consumed = np.array([6, 5, 1, 6, 0])
    return LoggedLists(
        heads=HEADS,
        users=np.arange(N),
        items=random.permutation(1000)[: N * L].reshape(N, L),
        outputs=outputs,
        labels=random.integers(0, 2, (N, L, 2)).astype(np.float32),
        attributes={name: random.integers(-1, 3, (N, L)) for name in ("topic", "author")},
        vectors=vectors(random, N, L),
        shown=np.full(N, L),
        consumed=consumed,
        more=np.array([True, False, False, False, False]),
        asked=np.array([6, 7, 8, 6, 6]),
        surface=np.zeros(N, dtype=np.int64),
        page=np.arange(N) if pages else np.zeros(N, dtype=np.int64),
        session=np.array([0, 2, 5, 0, 1]),
        slots=random.integers(0, 2, (N, L)),
        earlier=earlier if pages else None,
        log_propensity=np.full((N, L), -1.0),
    )


@pytest.mark.parametrize("pages", [False, True])
def test_rows_are_the_features_of_serving(pages: bool) -> None:
    logs = logged(pages)
    found = context_of(MODEL.features, logs, CONFIG.watch_head)
    slates = Slates(VALUE, mode=Mode.OFF)
    for n in range(N):
        pool = Pool(
            ids=logs.items[n],
            heads=HEADS,
            outputs=logs.outputs[n],
            attributes={name: values[n] for name, values in logs.attributes.items()},
            vectors=None if logs.vectors is None else logs.vectors[n],
        )
        shown = None
        if logs.earlier is not None:
            there = logs.earlier.there[n]
            count = int(there.sum())
            assert logs.earlier.vectors is not None
            shown = Shown(
                ids=np.arange(5000, 5000 + count),
                attributes={name: values[n][there] for name, values in logs.earlier.attributes.items()},
                vectors=logs.earlier.vectors[n][there],
                watch=np.full(count, logs.earlier.watch[n] / max(count, 1)),
                page=int(logs.page[n]),
            )
        asked = int(logs.asked[n])
        assert logs.slots is not None
        slots = [*logs.slots[n].tolist(), *[0] * (asked - L)]
        ask = SlateAsk(request_id="r", length=asked, shown=shown, slots=slots, consumed=int(logs.session[n]))
        scene = slates.scene(ask, pool)
        places = np.argsort(scene.columns)  # of the caller's candidates
        for t in range(L):
            before = places[:t].tolist()
            wanted = reference.context_row(MODEL, scene, before, int(places[t]))
            assert found[n, t] == pytest.approx(wanted, abs=1e-6), (n, t)


def test_only_consumed_positions_have_rows() -> None:
    logs = logged(True)
    rows = training_rows(MODEL.features, logs, CONFIG.watch_head)
    assert len(rows) == logs.consumed.sum()
    assert np.array_equal(np.bincount(rows.lists, minlength=N), logs.consumed)
    last = np.flatnonzero(np.append(rows.lists[1:] != rows.lists[:-1], True))
    # The first went on to the next page, the second and third left, the fourth's end is unknown.
    assert rows.leave[last[:3]].tolist() == [0.0, 1.0, 1.0]
    assert np.isnan(rows.leave[last[3]])
    assert np.nansum(np.delete(rows.leave, last)) == 0


def test_weights_of_propensities() -> None:
    logs = logged(False)
    rows = training_rows(MODEL.features, logs, CONFIG.watch_head, clip_weights=2.0)
    assert (rows.weight == 2.0).all()
    assert training_rows(MODEL.features, logs, CONFIG.watch_head, 10.0).weight == pytest.approx(np.e)


def test_what_logs_lack_is_named() -> None:
    bare = StepModel.zero(
        StepConfig(heads=CONFIG.heads, groups=(Group(name="format", features=("count:format",)),))
    )
    with pytest.raises(ConfigError, match="format"):
        context_of(bare.features, logged(False))
