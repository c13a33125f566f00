"""Which model token stands for which code of which level, and what surrounds codes in a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.generation.catalogue.index import Int64s, Whole

Tokenizer: TypeAlias = Callable[[str], int | None]  # the id of one whole token, None if there is none

_PATH = "sid_token_map"
_TOKEN_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False)
class SidTokenMap:
    """Model tokens of codes. Tokens of a level are distinct; levels overlap only where that was asked for.

    Attributes:
        tables: per level int64 [V_l], the token of each code.
        bases: per level the first token if the tokens are consecutive, else None.
    """

    tables: tuple[Int64s, ...]
    bases: tuple[int | None, ...]

    def columns(self, level: int) -> slice | Int64s:
        """The tokens of `level` in the order of codes: a slice where they are consecutive."""
        base, table = self.bases[level - 1], self.tables[level - 1]
        return table if base is None else slice(base, base + len(table))

    def of_level(self, level: int, codes: Whole) -> Int64s:
        """The tokens of codes of one level. [n]"""
        return self.tables[level - 1][codes]

    def of(self, codes: Whole) -> Int64s:
        """The tokens of whole semantic ids. [n, L]"""
        return np.stack([table[codes[:, at]] for at, table in enumerate(self.tables)], axis=1)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ConfigError unless every token is below `vocab_size`."""
        for level, table in enumerate(self.tables, start=1):
            code = int(table.argmax())
            if table[code] >= vocab_size:
                raise ConfigError(
                    _PATH, f"level {level}: code {code} is token {table[code]}, limit {vocab_size - 1}"
                )


class TokenSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How codes become tokens, as it is written down; exactly one of the first three.

    Attributes:
        bases: per level, the token of code 0; the others follow it.
        tables: per level, the token of each code.
        patterns: per level, or one for all, the text of a token with `{code}` and maybe `{level}` (from 1).
        overlap: whether levels may share tokens.
    """

    bases: tuple[int, ...] | None = None
    tables: tuple[tuple[int, ...], ...] | None = None
    patterns: tuple[str, ...] | None = None
    overlap: bool = False

    def resolve(
        self, sizes: Sequence[int], tokenizer: Tokenizer | None = None, vocab_size: int = _TOKEN_MAX + 1
    ) -> SidTokenMap:
        """The map for levels of these sizes.

        Args:
            vocab_size: of the model, if it is known; no more tokens than that are made.

        Raises:
            ConfigError: another number of levels or codes, a token that does not exist, is negative or stands
                for two codes of a level, or levels that overlap.
        """
        given = [name for name in ("bases", "tables", "patterns") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(
                _PATH, f"{' and '.join(given) or 'nothing'}, expected bases, tables or patterns"
            )
        if self.bases is not None:
            _check_levels(given[0], len(self.bases), len(sizes))
            for level, (base, size) in enumerate(zip(self.bases, sizes, strict=True), start=1):
                if not 0 <= base <= _TOKEN_MAX:
                    raise ConfigError(f"{_PATH}.bases", f"level {level}: {base}, limit 0 to {_TOKEN_MAX}")
                if base + size > vocab_size:
                    last = base + size - 1
                    raise ConfigError(
                        f"{_PATH}.bases",
                        f"level {level}: code {size - 1} is token {last}, limit {vocab_size - 1}",
                    )
            tables = [base + np.arange(size) for base, size in zip(self.bases, sizes, strict=True)]
        elif self.tables is not None:
            _check_levels(given[0], len(self.tables), len(sizes))
            tables = [_table(level, one, sizes) for level, one in enumerate(self.tables, start=1)]
        else:
            tables = _from_patterns(self.patterns or (), sizes, tokenizer)
        _check(tables, self.overlap)
        for table in tables:
            table.flags.writeable = False
        return SidTokenMap(tuple(tables), tuple(map(_base, tables)))


def stacked(sizes: Sequence[int], first: int = 0) -> TokenSpec:
    """Levels one behind the other, from token `first` on."""
    bases = first + np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(int)
    return TokenSpec(bases=tuple(bases.tolist()))


class PromptTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model tokens around the codes of a history: in front of all, around each item, behind all."""

    before: tuple[int, ...] = ()
    item_before: tuple[int, ...] = ()
    item_after: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def tokens(self, codes: Whole, token_map: SidTokenMap) -> Int64s:
        """The prompt of a history [n, L] of codes, oldest first. [tokens]"""
        n = len(codes)
        around = [np.tile(np.array(one, np.int64), (n, 1)) for one in (self.item_before, self.item_after)]
        items = np.concatenate([around[0], token_map.of(codes), around[1]], axis=1)
        ends = [np.array(one, np.int64) for one in (self.before, self.after)]
        return np.concatenate([ends[0], items.reshape(-1), ends[1]])


def _check_levels(name: str, count: int, levels: int) -> None:
    if count != levels:
        raise ConfigError(f"{_PATH}.{name}", f"{count} levels, the catalogue has {levels}")


def _table(level: int, tokens: Sequence[int], sizes: Sequence[int]) -> Int64s:
    if len(tokens) != sizes[level - 1]:
        raise ConfigError(
            f"{_PATH}.tables", f"level {level}: {len(tokens)} tokens, expected {sizes[level - 1]}, one a code"
        )
    wrong = [code for code, token in enumerate(tokens) if not 0 <= token <= _TOKEN_MAX]
    if wrong:
        raise ConfigError(
            f"{_PATH}.tables",
            f"level {level}: code {wrong[0]}: token {tokens[wrong[0]]}, limit {_TOKEN_MAX}",
        )
    return np.array(tokens, np.int64)


def _from_patterns(
    patterns: Sequence[str], sizes: Sequence[int], tokenizer: Tokenizer | None
) -> list[Int64s]:
    path = f"{_PATH}.patterns"
    if tokenizer is None:
        raise ConfigError(path, "the model has no tokenizer to look them up in")
    if len(patterns) == 1:
        patterns = [patterns[0]] * len(sizes)
    _check_levels("patterns", len(patterns), len(sizes))
    tables: list[Int64s] = []
    for level, (pattern, size) in enumerate(zip(patterns, sizes, strict=True), start=1):
        if "{code}" not in pattern:
            raise ConfigError(path, f"level {level}: {pattern!r} has no {{code}}")
        table = np.empty(size, np.int64)
        for code in range(size):
            # Not str.format: a pattern is data, and a format string could reach into objects.
            text = pattern.replace("{level}", str(level)).replace("{code}", str(code))
            token = tokenizer(text)
            if token is None:
                raise ConfigError(path, f"level {level}: code {code}: the tokenizer has no token {text!r}")
            table[code] = token
        tables.append(table)
    return tables


def _check(tables: Sequence[Int64s], overlap: bool) -> None:
    for level, table in enumerate(tables, start=1):
        if int(table.min()) < 0 or int(table.max()) > _TOKEN_MAX:
            code = int(np.argmax((table < 0) | (table > _TOKEN_MAX)))
            raise ConfigError(
                _PATH, f"level {level}: code {code} is token {table[code]}, limit 0 to {_TOKEN_MAX}"
            )
        values, counts = np.unique(table, return_counts=True)
        if len(values) < len(table):
            twice = int(np.argmax(counts > 1))
            raise ConfigError(
                _PATH,
                f"level {level}: token {values[twice]} stands for {counts[twice]} codes",
            )
    if overlap:
        return
    for level, table in enumerate(tables, start=1):
        for other in range(level):
            shared = np.intersect1d(table, tables[other]) if other < level - 1 else table[:0]
            if len(shared):
                raise ConfigError(
                    _PATH,
                    f"token {shared[0]} is in levels {other + 1} and {level}; set overlap to allow that",
                )


def _base(table: Int64s) -> int | None:
    return int(table[0]) if bool((np.diff(table) == 1).all()) else None
