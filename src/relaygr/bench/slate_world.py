"""Requests for lists of the size that servers see, and the list layer that serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaygr.listwise.arrays import Float32
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.lists import ListModel
from relaygr.listwise.masks import NoRules, Rules
from relaygr.listwise.pool import Head, HeadKind, Pool
from relaygr.listwise.proposal import Generator
from relaygr.listwise.result import Stage
from relaygr.listwise.rules.document import parse_rules
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import HeadSpec, StepConfig, StepModel, default_groups
from relaygr.listwise.trust import Trust
from relaygr.listwise.value import Factor, Fn, Term, ValueDocument, ValueFunction

HEADS = (Head("like"), Head("complete"), Head("watch_s", HeadKind.REGRESSION))
# Values of each attribute; candidates of one user are of fewer topics than the catalogue.
ATTRIBUTES = {"author": 80, "topic": 15, "format": 4, "audio": 40}
WIDTH = 64
JOINT_MS = 20.0  # as servers have it
_POOLS = 64
_TWO: list[dict[str, Any]] = [
    {"kind": "gap", "name": "authors", "attribute": "author", "distance": 3},
    {"kind": "cap", "name": "topics", "attribute": "topic", "most": 2, "window": 5},
]
RULES: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "two": _TWO,
    "four": [
        *_TWO,
        {"kind": "minimum", "name": "short", "attribute": "format", "values": [1], "count": 2, "within": 6},
        {"kind": "maximum", "name": "long", "attribute": "format", "values": [2], "count": 3},
    ],
}


class SlateWorld:
    """Random candidates of a seed; the same ones come round after a while."""

    def __init__(self, candidates: int, seed: int) -> None:
        document = ValueDocument(
            id="bench",
            terms=(
                Term(weight=1.0, factors=(Factor(head="watch_s", fn=Fn.LOG1P, min=0, max=180),)),
                Term(weight=4.0, factors=(Factor(head="like"), Factor(head="complete"))),
            ),
        )
        value = ValueFunction(document, HEADS)
        self.model = ListModel(random_step(HEADS, tuple(ATTRIBUTES), seed), value)
        random = np.random.default_rng(seed)
        self._pools = [random_pool(random, candidates) for _ in range(_POOLS)]

    def pool(self, at: int) -> Pool:
        return self._pools[at % _POOLS]

    def slates(self, width: int, top: int) -> Slates:
        """As a server makes them: greedy, a beam, MMR; a trust region of the beam's size."""
        beams: Sequence[Generator] = (Beam(self.model, width, top),) if width > 1 else ()
        return Slates(
            self.model.value,
            self.model,
            generators={
                Stage.GREEDY: (Beam(self.model, 1, top),),
                Stage.BEAM: beams,
                Stage.GENERATORS: (Mmr(),),
            },
            trust=Trust(top),
            joint_ms=JOINT_MS,
        )

    def rules(self, name: str) -> Rules:
        return RuleSet(parse_rules({"id": name, "rules": RULES[name]})) if RULES[name] else NoRules()


def random_step(heads: Sequence[Head], attributes: tuple[str, ...], seed: int) -> StepModel:
    """A step model whose nets have random weights, as large as training leaves them."""
    config = StepConfig(
        heads=tuple(HeadSpec(name=head.name, kind=head.kind) for head in heads),
        groups=default_groups(attributes),
        positions=10,
    )
    zero, random = StepModel.zero(config, seed=seed), np.random.default_rng(seed)
    tensors: dict[str, Float32] = {
        name: (values + 0.3 * random.standard_normal(values.shape)).astype(np.float32)
        for name, values in zero.tensors.items()
        if name.startswith("groups.")
    }
    return StepModel(config, {**zero.tensors, **tensors})


def random_pool(random: np.random.Generator, candidates: int) -> Pool:
    outputs = random.standard_normal((candidates, len(HEADS))).astype(np.float32)
    outputs[:, 2] = np.exp(outputs[:, 2] + 2.0)
    vectors = random.standard_normal((candidates, WIDTH))
    vectors[:, 0] += 1.0  # similar on the whole, as candidates of one user are
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Pool(
        ids=random.permutation(100 * candidates)[:candidates].astype(np.int64),
        heads=HEADS,
        outputs=outputs,
        attributes={name: random.integers(0, size, candidates) for name, size in ATTRIBUTES.items()},
        vectors=vectors.astype(np.float32),
    )
