"""Reads enough of a PromQL expression to tell which series it needs: names, matchers, grouping, ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*") | (?P<range>\[[^\]]*\]) | (?P<number>\d+(?:\.\d+)?)
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*) | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){},]))""",
    re.X,
)
_FUNCTIONS = frozenset(
    ["rate", "increase", "irate", "histogram_quantile", "sum", "max", "min", "avg", "count", "time", "vector"]
)
_WORDS = frozenset(["by", "without", "on", "ignoring", "or", "and", "unless", "bool"])


@dataclass(slots=True)
class Selector:
    """A use of a metric: its name, label matchers as (label, operator, value), and whether over a range."""

    metric: str
    matchers: list[tuple[str, str, str]] = field(default_factory=list)
    over_range: bool = False
    inside: tuple[str, ...] = ()


@dataclass(slots=True)
class Expression:
    selectors: list[Selector]
    grouped_by: set[str]


def parse_expression(text: str) -> Expression:
    """AssertionError for what this does not understand, so that nothing goes unchecked."""
    tokens = _tokens(text)
    found = Expression([], set())
    calls: list[str] = []  # the function of each open parenthesis
    place = 0
    while place < len(tokens):
        kind, token = tokens[place]
        following = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        if token in ("by", "without"):
            end = _closing(tokens, place + 1)
            found.grouped_by |= {name for kind, name in tokens[place + 2 : end] if kind == "name"}
            place = end
        elif token == "(":
            before = tokens[place - 1] if place else ("", "")
            calls.append(before[1] if before[1] in _FUNCTIONS else "")
        elif token == ")":
            assert calls, f"unbalanced: {text}"
            calls.pop()
        elif kind == "name" and token not in _WORDS and token not in _FUNCTIONS:
            assert following != "(", f"unknown function {token}: {text}"
            selector = Selector(token, inside=tuple(calls))
            place = _selector(tokens, place + 1, selector)
            found.selectors.append(selector)
            continue
        place += 1
    assert not calls, f"unbalanced: {text}"
    return found


def _tokens(text: str) -> list[tuple[str, str]]:
    found, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        assert match is not None, f"not understood at {place}: {text}"
        assert match.lastgroup is not None
        found.append((match.lastgroup, match[match.lastgroup]))
        place = match.end()
    return found


def _closing(tokens: list[tuple[str, str]], place: int) -> int:
    assert tokens[place][1] == "(", "by without a list of labels"
    return next(p for p in range(place, len(tokens)) if tokens[p][1] == ")")


def _selector(tokens: list[tuple[str, str]], place: int, selector: Selector) -> int:
    """Read what follows a metric; returns the place behind it."""
    if place < len(tokens) and tokens[place][1] == "{":
        place += 1
        while tokens[place][1] != "}":
            (_, label), (_, operator), (kind, value) = tokens[place : place + 3]
            assert kind == "string", f"matcher of {selector.metric} without a value"
            selector.matchers.append((label, operator, value[1:-1]))
            place += 4 if tokens[place + 3][1] == "," else 3
        place += 1
    if place < len(tokens) and tokens[place][0] == "range":
        selector.over_range = True
        place += 1
    return place
