"""Sections of settings whose numeric ranges are checked however a section is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from relaygr.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Range:
    """Accepts `low <= value <= high`, or `low < value` with `open_low`; `power_of_two` narrows it further."""

    low: float
    high: float
    open_low: bool = False
    power_of_two: bool = False

    def accepts(self, value: float) -> bool:
        # Written so that NaN, which compares false with everything, is refused.
        above = value > self.low if self.open_low else value >= self.low
        if not (above and value <= self.high):
            return False
        return not self.power_of_two or (int(value) & (int(value) - 1)) == 0

    def check(self, path: str, value: float, origin: str = "") -> None:
        """Raise ConfigError if `value` is outside; `origin` says where it came from."""
        if not self.accepts(value):
            raise ConfigError(path, f"{value!r} must be {self}{origin}")

    def __str__(self) -> str:
        bracket = "(" if self.open_low else "["
        kind = "a power of two in " if self.power_of_two else "in "
        return f"{kind}{bracket}{_plain(self.low)}, {_plain(self.high)}]"


def _plain(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else str(bound)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen group of settings; subclasses set `PATH` (dotted prefix of keys) and `LIMITS` by field.

    Raises:
        ConfigError: when built with a value outside its range, with the dotted path, the value and the limit.
    """

    PATH: ClassVar[str] = ""
    LIMITS: ClassVar[Mapping[str, Range]] = {}

    def __post_init__(self) -> None:
        for name in self.LIMITS:
            self.check(name, getattr(self, name))

    @classmethod
    def key(cls, name: str) -> str:
        return f"{cls.PATH}.{name}" if cls.PATH else name

    @classmethod
    def check(cls, name: str, value: Any, origin: str = "") -> None:
        """Raise ConfigError if `value` is outside the range of `name`; `origin` says where it came from."""
        limit = cls.LIMITS.get(name)
        if limit is not None:
            limit.check(cls.key(name), value, origin)
