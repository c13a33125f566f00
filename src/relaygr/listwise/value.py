"""The value function as data: one document that generators, evaluator, judge and reports use unchanged.

V = clip(sum over terms of weight * product over factors of fn(scale * clip(head, min, max))), in float64. A
binary head enters as its probability, a regression head as its value.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.core.excerpt import excerpt
from relaygr.listwise.arrays import Float64
from relaygr.listwise.log_check import repeated_key
from relaygr.listwise.pool import Head, HeadKind

MAX_BYTES = 1 << 20
# What a regression head without `max` may reach: the largest float32, as outputs are of that type.
_LARGEST = float(np.finfo(np.float32).max)


class Fn(StrEnum):
    IDENTITY = "identity"
    LOG1P = "log1p"
    POW = "pow"
    LOGIT = "logit"
    THRESHOLD = "threshold"


class Factor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """fn(scale * clip(head, min, max)).

    Attributes:
        head: name of an output of the ranker.
        fn: `pow` raises to `exp`; `threshold` is 1 from `at` on and 0 below it.
        min, max: clip the head first; None leaves that side open.
    """

    head: str
    fn: Fn = Fn.IDENTITY
    scale: float = 1.0
    min: float | None = None
    max: float | None = None
    exp: float | None = None
    at: float | None = None


class Term(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """weight * product of factors; a constant if there are none."""

    weight: float
    factors: tuple[Factor, ...] = ()


class ValueDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a value function's file holds. `clip` bounds the sum; None leaves it open."""

    id: str
    terms: tuple[Term, ...]
    clip: tuple[float, float] | None = None


class ValueFunction:
    """A document bound to the heads of a ranker.

    Args:
        document: the terms.
        heads: of the ranker, in the order of its outputs.

    Raises:
        ConfigError: a head is unknown, or some possible output has no finite real value; names the factor.
    """

    def __init__(self, document: ValueDocument, heads: Sequence[Head]) -> None:
        self.document, self.heads = document, tuple(heads)
        if not document.id:
            raise ConfigError("id", "must not be empty")
        if not document.terms:
            raise ConfigError("terms", "must not be empty")
        places = {head.name: at for at, head in enumerate(self.heads)}
        self._terms: list[tuple[float, list[tuple[int, Factor]]]] = []
        total = 0.0
        for at, term in enumerate(document.terms):
            bound = abs(term.weight)
            for number, factor in enumerate(term.factors):
                path = f"terms[{at}].factors[{number}]"
                if factor.head not in places:
                    raise ConfigError(
                        f"{path}.head", f"{excerpt(repr(factor.head))} is none of {', '.join(places)}"
                    )
                bound *= _largest(path, factor, self.heads[places[factor.head]].kind)
            if not math.isfinite(bound):
                raise ConfigError(f"terms[{at}]", "is not finite for some outputs of its heads")
            total += bound
            self._terms.append((term.weight, [(places[each.head], each) for each in term.factors]))
        if not math.isfinite(total):
            raise ConfigError("terms", "their sum is not finite for some outputs of the heads")
        if document.clip is not None:
            low, high = document.clip
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise ConfigError("clip", f"[{low}, {high}] is not an interval")
        plain = msgspec.convert(msgspec.to_builtins(document), ValueDocument)  # 180 and 180.0 are the same
        digest = hashlib.blake2b(msgspec.json.encode(plain), digest_size=4).hexdigest()
        self.version = f"{document.id}@{digest}"  # so that two documents of one id are told apart

    @property
    def reads(self) -> frozenset[str]:
        """Heads that some term depends on."""
        return frozenset(factor.head for term in self.document.terms for factor in term.factors)

    def __call__(self, natural: Float64) -> Float64:
        """Values [...] of probabilities and values of the heads, float64 [K, ...]."""
        total = self._term(0, natural)
        for at in range(1, len(self._terms)):
            total = total + self._term(at, natural)
        return self.clip(total)

    def terms(self, natural: Float64) -> Float64:
        """What each term adds before the clip; their sum in this order, clipped, is V. [terms, ...]"""
        return np.stack([self._term(at, natural) for at in range(len(self._terms))])

    def clip(self, total: Float64) -> Float64:
        if self.document.clip is None:
            return total
        low, high = self.document.clip
        clipped: Float64 = np.minimum(np.maximum(total, low), high)
        return clipped

    def _term(self, at: int, natural: Float64) -> Float64:
        weight, factors = self._terms[at]
        if not factors:
            return np.full(natural.shape[1:], weight)
        product = weight * _apply(factors[0][1], natural[factors[0][0]])
        for place, factor in factors[1:]:
            product = product * _apply(factor, natural[place])
        return product


def load_value(path: Path, heads: Sequence[Head]) -> ValueFunction:
    """Read a JSON document and bind it.

    Raises:
        ConfigError: the file cannot be read or is no document, or as `ValueFunction`.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(str(path), f"has more than {MAX_BYTES} bytes")
    return ValueFunction(parse_value(data, str(path)), heads)


def parse_value(data: bytes, name: str = "") -> ValueDocument:
    """A document from JSON. Raises ConfigError naming the key."""
    try:
        found = msgspec.json.decode(data, type=ValueDocument)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(name, f"is not a value function: {excerpt(str(error))}") from error
    twice = repeated_key(data)
    if twice is not None:
        raise ConfigError(name, f"is not a value function: {twice!r} stands twice in one object")
    return found


def _apply(factor: Factor, head: Float64) -> Float64:
    if factor.min is not None:
        head = np.maximum(head, factor.min)
    if factor.max is not None:
        head = np.minimum(head, factor.max)
    if factor.scale != 1.0:
        head = head * factor.scale
    match factor.fn:
        case Fn.IDENTITY:
            return head
        case Fn.LOG1P:
            return np.log1p(head)
        case Fn.POW:
            return np.power(head, factor.exp if factor.exp is not None else 1.0)
        case Fn.LOGIT:
            return np.log(head) - np.log1p(-head)
        case Fn.THRESHOLD:
            return (head >= (factor.at if factor.at is not None else 0.0)).astype(np.float64)


def _largest(path: str, factor: Factor, kind: HeadKind) -> float:
    """The largest magnitude of a factor. Each function is monotone, so the ends of its range say it all."""
    for name in ("scale", "min", "max", "exp", "at"):
        number = getattr(factor, name)
        if number is not None and not math.isfinite(number):
            raise ConfigError(f"{path}.{name}", f"{number} is not finite")
    for name, needed in (("exp", Fn.POW), ("at", Fn.THRESHOLD)):
        if (getattr(factor, name) is not None) != (factor.fn is needed):
            raise ConfigError(f"{path}.{name}", f"belongs to {needed} and to it alone; fn is {factor.fn}")
    low, high = 0.0, 1.0 if kind is HeadKind.BINARY else _LARGEST
    if factor.min is not None and factor.max is not None and factor.min > factor.max:
        raise ConfigError(f"{path}.min", f"{factor.min} is above max {factor.max}")
    if factor.min is not None:
        low, high = max(low, factor.min), max(high, factor.min)
    if factor.max is not None:
        low, high = min(low, factor.max), min(high, factor.max)
    ends = sorted((factor.scale * low, factor.scale * high))
    if factor.fn is Fn.POW and ends[0] < 0:
        raise ConfigError(path, f"pow of {ends[0]}: the range must not be negative")
    with np.errstate(all="ignore"):
        values = np.abs(_apply(factor, np.array([low, high])))
    if not np.isfinite(values).all():
        raise ConfigError(path, f"{factor.fn} is not finite on [{ends[0]}, {ends[1]}]")
    return float(values.max())
