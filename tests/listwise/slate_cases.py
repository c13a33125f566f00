"""Random requests, value functions and step models for the tests of slates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from relaygr.core.clock import ManualClock
from relaygr.listwise.generators.pointwise import Pointwise
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import Head, HeadKind, Pool, Shown
from relaygr.listwise.proposal import Budget
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.scene import Scene
from relaygr.listwise.step import Group, HeadSpec, StepConfig, StepModel
from relaygr.listwise.value import Factor, Fn, Term, ValueDocument, ValueFunction

HEADS = (Head("like"), Head("complete"), Head("watch_s", HeadKind.REGRESSION))
ATTRIBUTES = ("author", "topic", "format", "audio")

DOCUMENT = ValueDocument(
    id="reels-v7",
    terms=(
        Term(weight=1.0, factors=(Factor(head="watch_s", fn=Fn.LOG1P, min=0, max=180),)),
        Term(weight=4.0, factors=(Factor(head="like"), Factor(head="complete", fn=Fn.POW, exp=0.5))),
    ),
    clip=(0.0, 100.0),
)
VALUE = ValueFunction(DOCUMENT, HEADS)

GROUPS = (
    Group(name="similarity", features=("similarity:max", "similarity:mean")),
    *(Group(name=each, features=(f"count:{each}", f"recency:{each}")) for each in ATTRIBUTES),
    Group(name="place", features=("position", "session", "page", "watch", "slot:1"), hidden=8),
)


def step_config(groups: Sequence[Group] = GROUPS, **changes: object) -> StepConfig:
    config = StepConfig(
        heads=tuple(HeadSpec(name=head.name, kind=head.kind) for head in HEADS),
        groups=tuple(groups),
        watch_head="watch_s",
        exit_hidden=4,
        positions=5,
    )
    return StepConfig(**{name: changes.get(name, getattr(config, name)) for name in config.__struct_fields__})  # type: ignore[arg-type]


def trained(config: StepConfig, seed: int = 0, size: float = 0.5) -> StepModel:
    """A model whose every array is random, as after training."""
    random = np.random.default_rng(seed)
    zero = StepModel.zero(config, seed=seed)
    tensors = {
        name: values + size * random.standard_normal(values.shape).astype(np.float32)
        for name, values in zero.tensors.items()
    }
    binary = np.array([each.kind is HeadKind.BINARY for each in config.heads])
    tensors["heads.scale"] = np.where(binary, np.abs(tensors["heads.scale"]), 1.0).astype(np.float32)
    return StepModel(config, tensors)


def list_model(seed: int = 0, size: float = 0.5, **changes: object) -> ListModel:
    return ListModel(trained(step_config(**changes), seed, size), VALUE)  # type: ignore[arg-type]


def zero_model(**changes: object) -> ListModel:
    return ListModel(StepModel.zero(step_config(**changes)), VALUE)  # type: ignore[arg-type]


def random_pool(random: np.random.Generator, candidates: int, width: int = 8, ties: bool = False) -> Pool:
    """Few authors and topics, some without a value; with `ties`, few different outputs."""
    outputs = random.standard_normal((candidates, len(HEADS))).astype(np.float32)
    if ties:
        outputs = np.round(outputs).astype(np.float32)
    outputs[:, 2] = np.exp(outputs[:, 2])
    return Pool(
        ids=random.permutation(10 * candidates)[:candidates].astype(np.int64),
        heads=HEADS,
        outputs=outputs,
        attributes={name: random.integers(-1, 4, candidates) for name in ATTRIBUTES},
        vectors=unit_rows(random, candidates, width),
    )


def random_shown(random: np.random.Generator, rows: int, width: int = 8, first_id: int = 10**6) -> Shown:
    return Shown(
        ids=np.arange(first_id, first_id + rows, dtype=np.int64),
        attributes={name: random.integers(-1, 4, rows) for name in ATTRIBUTES},
        vectors=unit_rows(random, rows, width),
        watch=random.uniform(0, 30, rows),
        survival=0.8,
        page=2,
    )


def unit_rows(random: np.random.Generator, rows: int, width: int) -> np.ndarray:
    vectors = random.standard_normal((rows, width))
    vectors[:, 0] += 1.0  # similar on the whole, as candidates of one user are
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32)


def make_scene(ask: SlateAsk, pool: Pool, value: ValueFunction = VALUE) -> Scene:
    """Candidates in pointwise order, rules opened, fallback made."""
    worth = value(pool.natural())
    order = np.argsort(-worth, kind="stable")
    ranked = pool.select(order)
    walk = ask.rules.open(ranked, worth[order], ask.length, ask.shown, ask.allow_short)
    scene = Scene(ask, ranked, worth[order], walk, order)
    return scene.with_fallback(Pointwise().propose(scene, free_budget())[0].picks)


def random_scene(
    seed: int, candidates: int, length: int, shown: int = 0, ties: bool = False, **changes: object
) -> Scene:
    random = np.random.default_rng(seed)
    pool = random_pool(random, candidates, ties=ties)
    ask = SlateAsk(
        request_id=f"r{seed}",
        length=length,
        shown=random_shown(random, shown) if shown else None,
        slots=tuple(random.integers(0, 2, length).tolist()),
        consumed=int(random.integers(0, 9)),
    )
    return make_scene(replace(ask, **changes), pool)  # type: ignore[arg-type]


def free_budget() -> Budget:
    return Budget(ManualClock())
