"""Random requests under random rules: small enough for brute force, or of the size that servers see.

Tests and `bench slate` draw from the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaygr.listwise.arrays import Float64
from relaygr.listwise.pool import Head, Pool, Shown
from relaygr.listwise.rules.checker import Item
from relaygr.listwise.rules.document import RuleDocument, parse_rules
from relaygr.listwise.rules.ruleset import RuleSet

KINDS = ("gap", "cap", "minimum", "maximum", "slot", "pin", "pairs", "eligible")
ATTRIBUTES = ("author", "topic", "class", "safe")


@dataclass(frozen=True)
class Case:
    """One request; candidates are in the order of pointwise rank."""

    rules: RuleSet
    pool: Pool
    value: Float64
    length: int
    shown: Shown | None

    @property
    def document(self) -> RuleDocument:
        return self.rules.document

    def items(self) -> list[Item]:
        return items(self.pool.ids, self.pool.attributes)

    def before(self) -> list[Item]:
        return [] if self.shown is None else items(self.shown.ids, self.shown.attributes)


def items(ids: Any, attributes: Mapping[str, Any]) -> list[Item]:
    return [
        Item(int(item), {name: int(column[at]) for name, column in attributes.items()})
        for at, item in enumerate(ids)
    ]


def case(
    seed: int,
    *,
    candidates: int,
    length: int,
    shown: int = 3,
    rules: int = 3,
    kinds: tuple[str, ...] = KINDS,
    soft: float = 0.15,
    authors: int = 0,
    vectors: int = 0,
    twins: float = 0.0,
) -> Case:
    """A request of a seed, with up to the given numbers; `soft` is the share of priced rules.

    So many items as `twins` says have one of two vectors; all else is the same with any share of them.
    """
    rng = np.random.default_rng(seed)
    # Small cases vary in size, so that some pools are barely long enough.
    count = candidates if candidates > 20 else int(rng.integers(1, candidates + 1))
    past = int(rng.integers(0, shown + 1)) if rng.random() < 0.6 else 0
    authors = authors or int(rng.integers(1, 5))
    total = count + past
    columns = {
        "author": rng.integers(-1, authors, total),
        "topic": rng.integers(-1, max(authors // 2, 2), total),
        "class": rng.integers(0, 3, total),
        "safe": (rng.random(total) < 0.9).astype(np.int64),
    }
    ids = rng.permutation(10 * total)[:total].astype(np.int64)
    space = rng.normal(size=(total, vectors or 1)).astype(np.float32)
    space /= np.linalg.norm(space, axis=1, keepdims=True)
    if twins:
        apart = np.random.default_rng([seed, 1])
        space = np.where(
            apart.random((total, 1)) < twins, space[apart.integers(0, min(total, 2), total)], space
        )
    value = -np.sort(-np.round(rng.random(count), 1 if rng.random() < 0.5 else 6))  # some have ties
    here = {name: column[:count] for name, column in columns.items()}
    pool = Pool(
        ids=ids[:count],
        heads=(Head("like"),),
        outputs=value[:, None].astype(np.float32),
        attributes=here,
        vectors=space[:count] if vectors else None,
    )
    before = None
    if past:
        there = {name: column[count:] for name, column in columns.items()}
        before = Shown(ids=ids[count:], attributes=there, vectors=space[count:] if vectors else None)
    length = length if candidates > 20 else int(rng.integers(1, length + 1))
    drawn = [
        one_rule(rng, str(rng.choice(kinds)), f"r{at}", ids, authors, length, soft)
        for at in range(int(rng.integers(1, rules + 1)))
    ]
    document = parse_rules({"id": f"case-{seed}", "rules": drawn})
    return Case(RuleSet(document), pool, value, length, before)


def one_rule(
    rng: np.random.Generator, kind: str, name: str, ids: Any, authors: int, length: int, soft: float
) -> dict[str, Any]:
    rule: dict[str, Any] = {"kind": kind, "name": name}
    attribute = str(rng.choice(ATTRIBUTES[:3]))
    values = sorted({int(value) for value in rng.integers(0, 3, 2)})
    scope = str(rng.choice(["list", "feed"]))
    match kind:
        case "gap":
            rule |= {"attribute": attribute, "distance": int(rng.integers(2, 5))}
        case "cap":
            rule |= {"attribute": attribute, "most": int(rng.integers(1, 4))}
            rule["window"] = None if rng.random() < 0.3 else int(rng.integers(2, 6))
            rule["values"] = values if rng.random() < 0.3 else []
        case "minimum":
            within = int(rng.integers(1, length + 3))
            rule |= {"attribute": attribute, "values": values, "count": int(rng.integers(1, within + 1))}
            rule |= {"within": within, "scope": scope}
        case "maximum":
            rule |= {
                "attribute": attribute,
                "values": values,
                "count": int(rng.integers(0, 4)),
                "scope": scope,
            }
        case "slot":
            every = int(rng.integers(1, 6)) if rng.random() < 0.3 else None
            positions = {int(place) for place in rng.integers(0, every or length + 2, 2)}
            rule |= {"attribute": "class", "values": values, "positions": sorted(positions), "every": every}
            rule |= {"exclusive": bool(rng.random() < 0.5), "scope": scope}
        case "pin":
            rule |= {
                "item": int(rng.choice(ids)),
                "position": int(rng.integers(0, length + 2)),
                "scope": scope,
            }
        case "pairs":
            rule["attribute"] = attribute if rng.random() < 0.4 else None
            source = np.arange(max(authors, 3)) if rule["attribute"] else ids
            if len(source) < 2:
                source = np.array([source[0], source[0] + 1])
            rule["pairs"] = [rng.choice(source, 2, replace=False).tolist() for _ in range(2)]
        case _:
            rule |= {"attribute": "safe", "values": [0], "deny": True}
    if kind in ("gap", "cap", "minimum", "maximum", "pin"):
        if rng.random() < soft:
            rule["price"] = float(rng.random())
        elif rng.random() < 0.1:
            rule["relax"] = "never"
    return rule
