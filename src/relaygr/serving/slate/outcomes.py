"""What a returned list turned out to be worth: as it is told, or from what was observed of its positions."""

from __future__ import annotations

import numpy as np

from relaygr.core.errors import RequestError
from relaygr.core.excerpt import excerpt
from relaygr.listwise.pool import HeadKind
from relaygr.listwise.value import ValueFunction
from relaygr.serving.slate.wire import OutcomeBody

_NAMED = 8  # unknown heads that an error names


def realised(one: OutcomeBody, value: ValueFunction, at: int, positions: int | None = None) -> float:
    """The worth of one list.

    Observed heads are valued position by position by the same value function as predictions, without
    survival: positions that the user did not reach have no entry and are worth nothing.

    Args:
        at: place in the request, for messages.
        positions: of the list; None if it is not remembered.

    Raises:
        RequestError: both or neither are given, heads are not those of the value function, their lengths
            differ or are above that of the list, or a number is outside of what its head may be.
    """
    field = f"outcomes[{at}]"
    if (one.utility is None) == (one.heads is None):
        raise RequestError(field, "wants either utility or heads")
    if one.heads is None:
        assert one.utility is not None
        return one.utility
    names = [head.name for head in value.heads]
    if set(one.heads) != set(names):
        have = excerpt(", ".join(sorted(one.heads)[:_NAMED])) or "none"
        told = f"{have} ({len(one.heads)} names)" if len(one.heads) > _NAMED else have
        raise RequestError(f"{field}.heads", f"{told} are not the value function's {', '.join(names)}")
    lengths = {len(seen) for seen in one.heads.values()}
    if len(lengths) > 1:
        raise RequestError(f"{field}.heads", f"lengths {sorted(lengths)} differ")
    if positions is not None and (longest := max(lengths)) > positions:
        raise RequestError(f"{field}.heads", f"{longest} positions, the list had {positions}")
    observed = np.array([one.heads[name] for name in names], dtype=np.float64)
    for head, seen in zip(value.heads, observed, strict=True):
        most = 1.0 if head.kind is HeadKind.BINARY else np.finfo(np.float32).max
        wrong = ~((seen >= 0) & (seen <= most))
        if wrong.any():
            raise RequestError(
                f"{field}.heads.{head.name}",
                f"{seen[wrong][0]} is not from 0 to {most:g}, as {head.kind} heads are",
            )
    return float(value(observed).sum())
