"""The features that a step model may know of the picks so far, by name.

| name | meaning, for candidate i at position t (from 0) |
|---|---|
| `similarity:max`, `similarity:mean` | cosine of i to the last `window` picks or shown items; 0 before any |
| `count:A` | picks and shown items with i's value of attribute A |
| `recency:A` | 1 / distance to the last of them: 1 directly before, 0 if there is none |
| `position` | t / length asked for |
| `watch` | log(1 + sum of the watch head over the picks, as the ranker sees them, and over what was shown) |
| `session` | log(1 + items of the session before i) |
| `page` | index of the page |
| `slot:N` | 1 if position t is of type N, else 0 |
| `vector:D` | component D of i's vector; off by default, as it lets a model learn items by heart |

None depends on the step model itself, so that training can compute them from logged lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from relaygr.core.errors import ConfigError


class Kind(StrEnum):
    SIMILARITY = "similarity"
    COUNT = "count"
    RECENCY = "recency"
    POSITION = "position"
    WATCH = "watch"
    SESSION = "session"
    PAGE = "page"
    SLOT = "slot"
    VECTOR = "vector"


_BARE = (Kind.POSITION, Kind.WATCH, Kind.SESSION, Kind.PAGE)
_NUMBERED = (Kind.SLOT, Kind.VECTOR)
_MOVING = (Kind.SIMILARITY, Kind.COUNT, Kind.RECENCY, Kind.WATCH, Kind.VECTOR)


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the context: a kind and what follows the colon."""

    kind: Kind
    argument: str = ""

    @property
    def number(self) -> int:
        """The argument of `slot` and `vector`."""
        return int(self.argument)


def parse_feature(path: str, name: str) -> Feature:
    """A feature from its name. Raises ConfigError naming `path`."""
    head, colon, argument = name.partition(":")
    try:
        kind = Kind(head)
    except ValueError:
        raise ConfigError(path, f"{name!r} is none of {', '.join(Kind)}") from None
    sound = bool(argument) and not (kind is Kind.SIMILARITY and argument not in ("max", "mean"))
    if kind in _NUMBERED:
        sound = argument.isdecimal()
    if kind in _BARE:
        sound = not colon
    if not sound:
        raise ConfigError(path, f"{name!r}: {kind} does not go with {argument!r}")
    return Feature(kind, argument)


class FeatureTable:
    """The rows of a context [F, ...], in the order in which groups first name them.

    Attributes:
        names: F names.
        features: the same, parsed.
        counted, dated: attributes of the `count` and `recency` rows.
        still: rows that at a position are one number for all lists and candidates.
        moving: the other rows, by kind: similarity, count, recency, watch, vector.
        attributes: those of either, each once.
        window: picks that similarities look back at.
    """

    def __init__(self, groups: Sequence[Sequence[str]], window: int) -> None:
        self.window = window
        self.names = tuple(dict.fromkeys(name for group in groups for name in group))
        self.features = tuple(parse_feature("features", name) for name in self.names)
        kinds = {Kind.COUNT: list[str](), Kind.RECENCY: list[str]()}
        for one in self.features:
            if one.kind in kinds:
                kinds[one.kind].append(one.argument)
        self.counted, self.dated = tuple(kinds[Kind.COUNT]), tuple(kinds[Kind.RECENCY])
        self.attributes = tuple(dict.fromkeys((*self.counted, *self.dated)))
        self.still = [at for at, one in enumerate(self.features) if one.kind not in _MOVING]
        self.moving = [at for kind in _MOVING for at, one in enumerate(self.features) if one.kind is kind]

    def __len__(self) -> int:
        """F."""
        return len(self.names)

    def has(self, kind: Kind) -> bool:
        return any(one.kind is kind for one in self.features)

    def rows(self, names: Sequence[str]) -> list[int]:
        """Where the features of a group stand."""
        return [self.names.index(name) for name in names]
