"""Random requests under random rules, as `bench slate` draws them, and small ones by hand."""

from typing import Any

import numpy as np

from relaygr.bench.slate_cases import ATTRIBUTES, KINDS, Case, case, items, one_rule
from relaygr.listwise.pool import Head, Pool
from relaygr.listwise.rules.document import parse_rules
from relaygr.listwise.rules.ruleset import RuleSet

__all__ = ["ATTRIBUTES", "KINDS", "Case", "case", "items", "one_rule", "pool_of", "rules_of"]


def pool_of(count: int, **attributes: Any) -> Pool:
    """So many candidates in the order of value."""
    return Pool(
        ids=np.arange(count, dtype=np.int64),
        heads=(Head("like"),),
        outputs=np.linspace(1, 0, count, dtype=np.float32)[:, None],
        attributes={name: np.asarray(column, dtype=np.int64) for name, column in attributes.items()},
    )


def rules_of(*rules: dict[str, Any]) -> RuleSet:
    """Rules named by their places."""
    return RuleSet(
        parse_rules({"id": "d", "rules": [{"name": f"r{at}", **one} for at, one in enumerate(rules)]})
    )
