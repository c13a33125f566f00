"""Which of several methods is better: differences paired by request, users drawn whole, tests corrected."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64, Int64
from relaygr.training.bootstrap import DRAWS, interval, resample

FEWEST_SEEDS = 5
LEVEL = 0.05


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A method's mean less the baseline's, on the same requests.

    Attributes:
        low, high: 95 %, of a bootstrap over users, by itself.
        by_seed: of each seed's models.
        p: two-sided, from the same draws; at least 2 / (draws + 1).
        holm: p corrected for all comparisons of the table (Holm 1979).
        significant: `holm` is at most 5 %, and there are seeds enough.
    """

    method: str
    minus: str
    mean: float
    low: float
    high: float
    by_seed: tuple[float, ...]
    p: float
    holm: float
    significant: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All differences of one table.

    Attributes:
        preliminary: fewer than 5 seeds, so that nothing is called significant.
    """

    differences: tuple[Difference, ...]
    seeds: int
    users: int
    preliminary: bool

    @property
    def note(self) -> str:
        """What a reader must know about the number of tests."""
        few = f"; {self.seeds} seeds, fewer than {FEWEST_SEEDS}: preliminary" if self.preliminary else ""
        return (
            f"{len(self.differences)} comparisons on the same {self.users} users: intervals are of each by "
            f"itself, significance is after Holm's correction for all of them{few}"
        )


def compare(
    names: Sequence[str], values: Float64, users: Int64, baseline: str, seed: int = 0, draws: int = DRAWS
) -> Comparison:
    """Every method against a baseline.

    Args:
        names: M methods, distinct.
        values: [S, N, M], of S seeds' models on N requests; seeds share users and requests.
        users: [N].

    Raises:
        ConfigError: names and values do not fit, or the baseline is none of them.
    """
    S, N, M = values.shape
    if len(names) != M or len(set(names)) != M or len(users) != N:
        raise ConfigError("values", f"shape {[S, N, M]} for {len(names)} methods and {len(users)} requests")
    if baseline not in names:
        raise ConfigError("baseline", f"{baseline!r} is none of {', '.join(names)}")
    base = list(names).index(baseline)
    others = [at for at in range(M) if at != base]
    paired = values[..., others] - values[..., base : base + 1]  # [S, N, M - 1]
    drawn = resample(paired.mean(axis=0), users, per_user=False, seed=seed, draws=draws)
    tests = [_p(drawn.draws[:, at]) for at in range(len(others))]
    corrected = holm(tests)
    rows = []
    for at, method in enumerate(others):
        low, high = interval(drawn.draws[:, at])
        rows.append(
            Difference(
                method=names[method],
                minus=baseline,
                mean=float(drawn.observed[at]),
                low=low,
                high=high,
                by_seed=tuple(paired[:, :, at].mean(axis=1).tolist()),
                p=tests[at],
                holm=corrected[at],
                significant=corrected[at] <= LEVEL and S >= FEWEST_SEEDS,
            )
        )
    return Comparison(
        differences=tuple(rows), seeds=S, users=len(np.unique(users)), preliminary=S < FEWEST_SEEDS
    )


def holm(tests: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's step-down rule, in their order."""
    order = np.argsort(tests, kind="stable")
    found, largest = [0.0] * len(tests), 0.0
    for step, at in enumerate(order.tolist()):
        largest = max(largest, min(1.0, (len(tests) - step) * tests[at]))
        found[at] = largest
    return found


def _p(draws: Float64) -> float:
    """Two-sided: how often draws are on the other side of 0, themselves included."""
    below, above = int((draws <= 0).sum()), int((draws >= 0).sum())
    return float(min(1.0, 2 * (min(below, above) + 1) / (len(draws) + 1)))
