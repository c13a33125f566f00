"""How many bytes, how many users, and from which length on a copy is quicker than computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from relaygr.cache.chooser import Found, Way, pick, time_of
from relaygr.cache.speeds import Compute, Link
from relaygr.core.errors import ConfigError
from relaygr.sim.cache.trace import Ints

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1}
# Eight-bit formats have a scale beside every K row and every V row.
_SCALE_BYTES = {"int8": 2, "fp8": 2}
_STAGING_BUFFERS = 4  # two for each direction
_RUNS_PER_USER = 1


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides the bytes of a token: layers of equal size."""

    layers: int
    heads: int
    qk_dim: int
    v_dim: int

    def __post_init__(self) -> None:
        for name, value, high in (
            ("layers", self.layers, 1024),
            ("heads", self.heads, 1024),
            ("qk_dim", self.qk_dim, 65_536),
            ("v_dim", self.v_dim, 65_536),
        ):
            if not 1 <= value <= high:
                raise ConfigError(f"shape.{name}", f"{value} must be in [1, {high}]")

    def row_bytes(self, dtype: str) -> int:
        """Of a token in one layer; ConfigError for an unknown dtype."""
        if dtype not in ELEMENT_BYTES:
            raise ConfigError("dtype", f"{dtype!r} is none of {', '.join(ELEMENT_BYTES)}")
        values = (self.qk_dim + self.v_dim) * ELEMENT_BYTES[dtype]
        return self.heads * (values + 2 * _SCALE_BYTES.get(dtype, 0))

    def token_bytes(self, dtype: str) -> int:
        """Of a token in all layers."""
        return self.layers * self.row_bytes(dtype)


@dataclass(frozen=True, slots=True)
class Room:
    """A tier as it is asked for; users take whole units of it."""

    name: str
    nbytes: int
    token_bytes: int
    unit_tokens: int

    def check(self) -> None:
        """Raise ConfigError if it is smaller than one unit."""
        unit = self.unit_tokens * self.token_bytes
        if self.nbytes < unit:
            reason = f"{self.nbytes} is less than {self.unit_tokens} tokens, {unit}"
            raise ConfigError(f"tiers.{self.name}_bytes", reason)

    def user_bytes(self, tokens: int) -> int:
        return -(-tokens // self.unit_tokens) * self.unit_tokens * self.token_bytes


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier holds.

    Attributes:
        tokens: in whole units.
        full_users: with the longest history of all that there may be.
        users: with as much as the users of the trace take on average, each at its longest.
        user_tokens: the tokens of so many users, without what their last units have left.
    """

    name: str
    nbytes: int
    token_bytes: int
    unit_tokens: int
    tokens: int
    full_users: int
    users: int
    user_tokens: int


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """A link between a tier and the device, and histories that are worth copying over it.

    Attributes:
        from_tokens: every history of so many tokens and more, up to `limit_tokens`, is copied quicker than
            it is computed; None if not even the longest one is.
        tokens: of a history that is looked at in full: to compute it, to copy all of it, and the best.
        split_tokens: what the best copies.
    """

    link: str
    bytes_per_s: float
    queue_ms: float
    from_tokens: int | None
    limit_tokens: int
    tokens: int
    recompute_ms: float
    load_ms: float
    best_ms: float
    split_tokens: int
    way: Way


def tier_of(room: Room, full_tokens: int, peaks: Ints) -> Tier:
    """What a tier holds of users with the longest histories `peaks`, or with `full_tokens`.

    Raises:
        ConfigError: it is smaller than one unit.
    """
    room.check()
    unit = room.unit_tokens * room.token_bytes
    units = int((-(-peaks // room.unit_tokens)).sum())
    held = room.nbytes // unit
    return Tier(
        name=room.name,
        nbytes=room.nbytes,
        token_bytes=room.token_bytes,
        unit_tokens=room.unit_tokens,
        tokens=room.nbytes // unit * room.unit_tokens,
        full_users=room.nbytes // room.user_bytes(full_tokens),
        users=held * len(peaks) // max(units, 1),
        user_tokens=held * int(peaks.sum()) // max(units, 1),
    )


def staging_bytes(shape: Shape, dtypes: Sequence[str], staging_tokens: int) -> int:
    """Two buffers for each direction, of one layer's rows each, in the widest of the formats."""
    return _STAGING_BUFFERS * staging_tokens * max(shape.row_bytes(dtype) for dtype in dtypes)


def break_even(
    name: str,
    link: Link,
    compute: Compute,
    *,
    queue_ms: float,
    candidates: int,
    layers: int,
    token_bytes: int,
    page_tokens: int,
    tokens: int,
    limit_tokens: int,
) -> BreakEven:
    """When to copy a history over a link rather than to compute it, while each layer's copy runs ahead of it.

    The ways compared are to copy everything and to copy nothing, for every length up to the limit, with
    `queue_ms` until the link is free; for `tokens`, one length, a split between them is considered too.
    """

    def found(length: int) -> Found:
        return Found(length, 0, length, candidates, token_bytes, page_tokens, _RUNS_PER_USER)

    def taken_ms(length: int, copied: int) -> float:
        return time_of(copied, found(length), link, compute, queue_ms, layers).total_ms

    worse = next((n for n in range(limit_tokens, 0, -1) if taken_ms(n, n) >= taken_ms(n, 0)), 0)
    choice = pick(found(tokens), link, compute, queue_ms=queue_ms, layers=layers)
    return BreakEven(
        link=name,
        bytes_per_s=link.bytes_per_s,
        queue_ms=queue_ms,
        from_tokens=None if worse == limit_tokens else worse + 1,
        limit_tokens=limit_tokens,
        tokens=tokens,
        recompute_ms=taken_ms(tokens, 0),
        load_ms=taken_ms(tokens, tokens),
        best_ms=choice.total_ms,
        split_tokens=choice.tokens,
        way=choice.way,
    )
