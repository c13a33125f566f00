"""Rules as data: a versioned JSON document, checked when it is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from relaygr.config.limits import Range
from relaygr.core.errors import ConfigError
from relaygr.core.excerpt import excerpt
from relaygr.listwise.pool import MISSING

MAX_RULES = 64
MAX_VALUES = 10_000
MAX_PAIRS = 50_000  # of all rules together: every list is read for each of them
MAX_NAME = 100  # characters of a name, an attribute or an id
MAX_DOCUMENT_BYTES = 1 << 20
_ID = Range(-(1 << 63), (1 << 63) - 1)
_POSITION = Range(0, 1 << 20)
_COUNT = Range(1, 1 << 20)

Scope: TypeAlias = Literal["list", "feed"]


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all rules have.

    Attributes:
        name: in logs, relaxations and explanations; no two rules share one. At most 100 characters.
    """

    LIMITS: ClassVar[Mapping[str, Range]] = {}

    name: str

    def check(self, path: str) -> None:
        """Raise ConfigError, naming field, value and limit, if the rule makes no sense by itself."""
        if not self.name or self.name == "length":
            raise ConfigError(f"{path}.name", f"{self.name!r} must be a word other than 'length'")
        _short(f"{path}.name", self.name)
        _short(f"{path}.attribute", getattr(self, "attribute", None) or "")
        for field, limit in self.LIMITS.items():
            value = getattr(self, field)
            for number in value if isinstance(value, tuple) else () if value is None else (value,):
                limit.check(f"{path}.{field}", number)
        values = getattr(self, "values", ())
        if MISSING in values:
            raise ConfigError(f"{path}.values", f"{MISSING} stands for no value, which no rule can name")


class Relaxable(Rule, frozen=True, kw_only=True):
    """A rule that may be given up or priced.

    Attributes:
        relax: place in the order in which rules are given up if no list satisfies all, lowest first, then in
            the document's order; None is the kind's default, "never" keeps the rule.
        price: if positive the rule is soft: a violation costs `price` x its size and is never forbidden.
    """

    ORDER: ClassVar[int] = 0

    relax: int | Literal["never"] | None = None
    price: float = 0.0

    @property
    def order(self) -> int | None:
        """The place in the order of relaxation; None for never."""
        if self.relax == "never":
            return None
        return self.ORDER if self.relax is None else self.relax

    def check(self, path: str) -> None:
        # A class body cannot call super() before msgspec has made the class anew for its tag.
        Rule.check(self, path)
        Range(0, 1e12).check(f"{path}.price", self.price)
        if isinstance(self.relax, int):
            Range(0, 1000).check(f"{path}.relax", self.relax)


class Gap(Relaxable, frozen=True, kw_only=True, tag="gap"):
    """At most one item of a value of `attribute` (an author) in any `distance` consecutive positions."""

    ORDER = 30
    LIMITS = {"distance": Range(2, 1 << 20)}

    attribute: str
    distance: int


class Cap(Relaxable, frozen=True, kw_only=True, tag="cap"):
    """At most `most` items of a value of `attribute` (a topic) in any `window` consecutive positions.

    Attributes:
        window: None counts over the whole feed.
        values: the values that it holds for; empty for all.
    """

    ORDER = 20
    LIMITS = {"most": _COUNT, "window": Range(2, 1 << 20), "values": _ID}

    attribute: str
    most: int
    window: int | None = None
    values: tuple[int, ...] = ()


class Minimum(Relaxable, frozen=True, kw_only=True, tag="minimum"):
    """At least `count` items whose `attribute` is one of `values` within the first `within` positions.

    Attributes:
        within: None is the whole list.
        scope: "list" counts each list by itself; "feed" counts and positions go on from what was shown, and
            `within` must be given.
    """

    ORDER = 10
    LIMITS = {"count": _COUNT, "within": _COUNT, "values": _ID}

    attribute: str
    values: tuple[int, ...]
    count: int
    within: int | None = None
    scope: Scope = "list"

    def check(self, path: str) -> None:
        Relaxable.check(self, path)
        _some(f"{path}.values", self.values)
        if self.within is not None and self.count > self.within:
            raise ConfigError(f"{path}.count", f"{self.count} must be at most {path}.within = {self.within}")
        if self.scope == "feed" and self.within is None:
            raise ConfigError(f"{path}.within", "None must be a number, as the scope is 'feed'")


class Maximum(Relaxable, frozen=True, kw_only=True, tag="maximum"):
    """At most `count` items whose `attribute` is one of `values`, in the feed so far or in each list."""

    ORDER = 20
    LIMITS = {"count": Range(0, 1 << 20), "values": _ID}

    attribute: str
    values: tuple[int, ...]
    count: int
    scope: Scope = "feed"

    def check(self, path: str) -> None:
        Relaxable.check(self, path)
        _some(f"{path}.values", self.values)


class Slot(Rule, frozen=True, kw_only=True, tag="slot"):
    """Certain positions take only items of a class: advertisements, for example. Never relaxed.

    Attributes:
        positions: from 0.
        every: if given, the positions repeat with this period.
        exclusive: items of the class stand nowhere else.
        scope: "list" counts positions in each list; "feed" goes on from what was shown.
    """

    LIMITS = {"positions": _POSITION, "every": _COUNT, "values": _ID}

    attribute: str
    values: tuple[int, ...]
    positions: tuple[int, ...]
    every: int | None = None
    exclusive: bool = False
    scope: Scope = "list"

    def check(self, path: str) -> None:
        Rule.check(self, path)
        _some(f"{path}.values", self.values)
        _some(f"{path}.positions", self.positions)
        if self.every is not None and max(self.positions) >= self.every:
            raise ConfigError(
                f"{path}.positions", f"{max(self.positions)} must be below {path}.every = {self.every}"
            )


class Pin(Relaxable, frozen=True, kw_only=True, tag="pin"):
    """An item stands at `position`, from 0, and nowhere else."""

    ORDER = 40
    LIMITS = {"item": _ID, "position": _POSITION}

    item: int
    position: int
    scope: Scope = "list"


class Pairs(Rule, frozen=True, kw_only=True, tag="pairs"):
    """Of two items, or of two values of `attribute`, at most one is in the feed. Never relaxed."""

    pairs: tuple[tuple[int, int], ...]
    attribute: str | None = None

    def check(self, path: str) -> None:
        Rule.check(self, path)
        _some(f"{path}.pairs", self.pairs)
        for at, pair in enumerate(self.pairs):
            if self.attribute is not None and MISSING in pair:
                raise ConfigError(
                    f"{path}.pairs[{at}]", f"{MISSING} stands for no value, which no rule can name"
                )
            if pair[0] == pair[1]:
                raise ConfigError(f"{path}.pairs[{at}]", f"{list(pair)} must be two different numbers")
            for number in pair:
                _ID.check(f"{path}.pairs[{at}]", number)


class Eligible(Rule, frozen=True, kw_only=True, tag="eligible"):
    """Only items whose `attribute` is one of `values`, or none of them with `deny`. Never relaxed."""

    LIMITS = {"values": _ID}

    attribute: str
    values: tuple[int, ...]
    deny: bool = False

    def check(self, path: str) -> None:
        Rule.check(self, path)
        _some(f"{path}.values", self.values)


AnyRule: TypeAlias = Gap | Cap | Minimum | Maximum | Slot | Pin | Pairs | Eligible


class RuleDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of rules.

    Attributes:
        id: its version; in every response and log row. At most 100 characters where it is read from a file.
        rules: in the order in which equals are relaxed.
        lookahead_nodes: partial lists that the exact search may expand to find rules that can hold together,
            and again for the generators of a request.
    """

    id: str
    rules: tuple[AnyRule, ...] = ()
    lookahead_nodes: int = 4000

    def check(self) -> None:
        """Raise ConfigError, naming field, value and limit, if a rule or the set makes no sense."""
        if not self.id:
            raise ConfigError("id", "'' must be a name")
        Range(0, 10_000_000).check("lookahead_nodes", self.lookahead_nodes)
        if len(self.rules) > MAX_RULES:
            raise ConfigError("rules", f"{len(self.rules)} rules, limit {MAX_RULES}")
        pairs = sum(len(rule.pairs) for rule in self.rules if isinstance(rule, Pairs))
        if pairs > MAX_PAIRS:
            raise ConfigError("rules", f"{pairs} pairs in all, limit {MAX_PAIRS}")
        places: dict[str, int] = {}
        for at, rule in enumerate(self.rules):
            rule.check(f"rules[{at}]")
            if rule.name in places:
                raise ConfigError(f"rules[{at}].name", f"{rule.name!r} is rules[{places[rule.name]}] too")
            places[rule.name] = at

    def extended(self, rules: Iterable[AnyRule], id: str | None = None) -> RuleDocument:
        """This document with the rules of a request (pins, for example) behind its own; checked."""
        more = msgspec.structs.replace(self, rules=(*self.rules, *rules), id=id or self.id)
        more.check()
        return more


def parse_rules(source: bytes | str | Mapping[str, Any]) -> RuleDocument:
    """Read and check a document, from JSON or from what JSON decodes to.

    Raises:
        ConfigError: with the path of the bad field, its value and what it must be.
    """
    raw: Any = source
    if isinstance(source, bytes | str):
        if len(source) > MAX_DOCUMENT_BYTES:
            raise ConfigError("rules", f"{len(source)} bytes, limit {MAX_DOCUMENT_BYTES}")
        try:
            raw = msgspec.json.decode(source)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ConfigError("rules", excerpt(f"the document is not JSON: {error}")) from error
    try:
        document = msgspec.convert(raw, type=RuleDocument)
    except msgspec.ValidationError as error:
        raise _explained(raw, error) from error
    _short("id", document.id)
    document.check()
    return document


def read_rules(file: Path) -> RuleDocument:
    """The document in a file; ConfigError as `parse_rules`, or naming the file if it cannot be read."""
    try:
        return parse_rules(file.read_bytes())
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read: {error.strerror}") from error


def _short(path: str, text: str) -> None:
    if len(text) > MAX_NAME:
        raise ConfigError(path, f"{excerpt(repr(text), 80)}: limit {MAX_NAME} characters")


def _some(path: str, values: tuple[Any, ...]) -> None:
    if not 1 <= len(values) <= MAX_VALUES:
        raise ConfigError(path, f"{len(values)} entries, wanted from 1 to {MAX_VALUES}")


def _explained(raw: Any, error: msgspec.ValidationError) -> ConfigError:
    """msgspec says where and what it wanted; the value is looked up there."""
    wanted, _, where = str(error).partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    value = raw
    for step in re.findall(r"[^.\[\]]+", path):
        try:
            value = value[int(step)] if isinstance(value, list | tuple) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return ConfigError(excerpt(path), excerpt(wanted))
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return ConfigError(excerpt(path), f"{shown}: {excerpt(wanted)}")
