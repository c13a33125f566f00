"""Folds of users: disjoint whatever the users are; judges that are not independent are refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.listwise.folds import Fold, Lineage, Part, Split, check_judge, uniform


def test_parts_are_disjoint_and_of_their_shares() -> None:
    split = Split(shares=(0.5, 0.3, 0.2))
    users = np.random.default_rng(0).integers(0, 2**62, 20_000)
    rows = [set(split.fold(part).rows(users).tolist()) for part in Part]
    assert set.union(*rows) == set(range(len(users)))
    assert sum(map(len, rows)) == len(users)
    assert [len(each) / len(users) for each in rows] == pytest.approx(split.shares, abs=0.02)
    # The part of a user depends on nothing but the user and the split.
    again = split.parts(users[::-1])[::-1]
    assert again.tolist() == split.parts(users).tolist()
    assert split.parts(users).tolist() != Split(salt="1", shares=split.shares).parts(users).tolist()


def test_numbers_of_users_are_even() -> None:
    numbers = uniform(np.arange(10_000), "x")
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert np.histogram(numbers, 10, (0, 1))[0].min() > 800


def test_shares_are_checked() -> None:
    for shares in ((0.5, 0.5, 0.0), (0.5, 0.3, 0.3), (float("nan"), 0.5, 0.5)):
        with pytest.raises(ConfigError, match="shares"):
            Split(shares=shares)


JUDGE = Lineage(version="j", fold=Split().fold(Part.JUDGE), arch="recurrent", seed=1)
SELECTOR = Lineage(version="s", fold=Split().fold(Part.EVALUATOR), arch="attention", seed=0)


def test_an_independent_judge_passes() -> None:
    check_judge(JUDGE, [SELECTOR, Lineage(version="t", fold=Split().fold(Part.STEP), arch="step")])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "j"}, "the selector itself"),
        ({"fold": None}, "not known"),
        ({"fold": Split(salt="other").fold(Part.EVALUATOR)}, "different splits"),
        ({"fold": JUDGE.fold}, "the same users"),
        ({"arch": "recurrent"}, "the same architecture"),
        ({"seed": 1}, "the same seed"),
    ],
)
def test_a_judge_that_is_not_independent_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_judge(JUDGE, [SELECTOR, msgspec.structs.replace(SELECTOR, **change)])
    with pytest.raises(ConfigError, match="not known"):
        check_judge(msgspec.structs.replace(JUDGE, fold=None), [SELECTOR])


def test_folds_stand_in_files() -> None:
    fold = Split(salt="x").fold(Part.JUDGE)
    assert msgspec.json.decode(msgspec.json.encode(fold), type=Fold) == fold
