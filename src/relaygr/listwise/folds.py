"""Folds of users: step model, evaluator and judge learn from different people.

The fold of a user is a digest of a salt and the user's number, so that folds of one split are disjoint
whatever the logs are, and a model that knows its fold can be asked whom it has seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64, Int64


class Part(StrEnum):
    """Who learns from a fold."""

    STEP = "step"
    EVALUATOR = "evaluator"
    JUDGE = "judge"


class Split(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How users are divided: shares of `Part` in its order, and a salt.

    Raises:
        ConfigError: the shares are not positive numbers that sum to 1.
    """

    salt: str = "0"
    shares: tuple[float, float, float] = (0.5, 0.25, 0.25)

    def __post_init__(self) -> None:
        if not all(0 < each < 1 for each in self.shares) or abs(sum(self.shares) - 1) > 1e-9:
            raise ConfigError("shares", f"{list(self.shares)} must be above 0 and sum to 1")

    def parts(self, users: Int64) -> Int64:
        """Index of the part of each user, int64 [N] -> [N]."""
        inner = np.cumsum(self.shares)[:-1]
        found: Int64 = np.searchsorted(inner, uniform(users, self.salt), side="right").astype(np.int64)
        return found

    def fold(self, part: Part) -> Fold:
        return Fold(part=part, split=self)


class Fold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a split; stands in the configuration of what learned from it."""

    part: Part
    split: Split

    def rows(self, users: Int64) -> Int64:
        """Which of the users int64 [N] are in it."""
        found: Int64 = np.flatnonzero(self.split.parts(users) == list(Part).index(self.part))
        return found


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model comes from: its version, the fold that it learned from, and what it is.

    Attributes:
        fold: None if nobody wrote it down.
        arch: name of the architecture; seed: of its first weights, None if nobody wrote it down.
    """

    version: str
    fold: Fold | None
    arch: str
    seed: int | None = None


def check_role(fold: Fold | None, wanted: str) -> None:
    """Refuse a judge where what proposes or selects lists is wanted.

    Raises:
        ConfigError: the fold is a judge's.
    """
    if fold is not None and fold.part is Part.JUDGE:
        raise ConfigError(
            "fold", f"is that of a judge, which has to stay apart from what makes lists; wanted {wanted}"
        )


def check_judge(judge: Lineage, selectors: Sequence[Lineage]) -> None:
    """Refuse a judge that is not independent of what selected or proposed the lists.

    Raises:
        ConfigError: the judge is one of the selectors, saw their users or may have seen them, or has their
            architecture or seed.
    """
    for one in selectors:
        if one.version == judge.version:
            raise ConfigError("judge", f"{judge.version} is the selector itself")
        if one.fold is None or judge.fold is None:
            who = one if one.fold is None else judge
            raise ConfigError("judge", f"the users that {who.version} learned from are not known")
        if one.fold.split != judge.fold.split:
            raise ConfigError(
                "judge", f"{judge.version} and {one.version} are of different splits, which may share users"
            )
        if one.fold.part is judge.fold.part:
            raise ConfigError("judge", f"{judge.version} and {one.version} learned from the same users")
        if one.arch == judge.arch:
            raise ConfigError("judge", f"{one.version} is of the same architecture, {judge.arch}")
        if one.seed is not None and one.seed == judge.seed:
            raise ConfigError("judge", f"{one.version} has the same seed, {judge.seed}")


def uniform(users: Int64, salt: str) -> Float64:
    """A number in [0, 1) of each user and a salt, the same in every process. int64 [N] -> [N]"""
    known, places = np.unique(users, return_inverse=True)
    made = np.empty(len(known))
    for at, user in enumerate(known.tolist()):
        digest = hashlib.blake2b(f"{salt}:{user}".encode(), digest_size=8).digest()
        made[at] = int.from_bytes(digest, "little") / 2.0**64
    numbers: Float64 = np.minimum(made, np.nextafter(1.0, 0.0))[places]
    return numbers
