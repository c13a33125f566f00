"""Typed reading of a JSON object that others wrote; every error names the file and the key."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from relaygr.core.errors import ConfigError


class Keys:
    """The keys of one JSON object, read with their types; errors name file and key."""

    def __init__(self, path: Path, values: dict[str, Any], where: str = "") -> None:
        self.path, self.values, self.where = path, values, where

    def refuse(self, key: str, why: str) -> ConfigError:
        return ConfigError(f"{self.path}: {self.where}{key}", why)

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` if it is absent or null."""
        value = self.values.get(key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if value is None:
            raise self.refuse(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refuse(key, f"{value!r} must be a whole number, at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if value is None:
            raise self.refuse(key, "is missing")
        try:
            if not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value):
                return float(value)
        except OverflowError:
            pass  # a whole number beyond all floats
        raise self.refuse(key, f"{repr(value)[:64]} must be a finite number")

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, f"{value!r} must be true or false")
        return value

    def below(self, key: str) -> Keys:
        """The object under `key`; empty if it is absent or null."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.refuse(key, f"{value!r} must be an object")
        return Keys(self.path, value, f"{self.where}{key}.")
