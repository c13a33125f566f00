"""What is measured of list methods in worlds of known truth, and the rows it is summed up in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64
from relaygr.training.bootstrap import interval, resample
from relaygr.training.slate.fit import StepTraining
from relaygr.training.slate.world import WorldConfig

POINTWISE, DEFAULT, GREEDY = "pointwise", "default", "greedy"
RERANKERS = ("mmr", "dpp", "ssd")


class GainRow(msgspec.Struct, frozen=True, kw_only=True):
    """One method: mean true U over that of the pointwise lists, less 1, in per cent.

    Attributes:
        lists: logged lists that its model was trained on; None without a model.
        low, high: 95 % interval, of a bootstrap over the users of all seeds with the models as they are.
        by_seed: of each seed's world and model.
        inflation: what the model says of the chosen lists over what they are truly worth; None without one.
    """

    method: str
    lists: int | None
    gain: float
    low: float
    high: float
    by_seed: tuple[float, ...]
    inflation: float | None = None


class Margin(msgspec.Struct, frozen=True, kw_only=True):
    """What the served default gains more than another method, in points of the gain.

    Attributes:
        low, high: 95 % interval of the same bootstrap; both methods had the same requests.
    """

    lists: int
    than: str
    points: float
    low: float
    high: float


class InflationCell(msgspec.Struct, frozen=True, kw_only=True):
    """A beam of one width over one pool, under the model of one log.

    Attributes:
        fitted: whether the model is the one that learns items by heart.
        width: B; candidates: m, or all of them.
        gain: in per cent, as of rows; inflation: predicted over true U of the chosen lists.
    """

    fitted: bool
    lists: int
    width: int
    candidates: int
    gain: float
    inflation: float


class GainsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in the order in which they were measured; `requests` a seed."""

    rows: tuple[GainRow, ...]
    margins: tuple[Margin, ...]
    cells: tuple[InflationCell, ...]
    seeds: tuple[int, ...]
    requests: int
    world: WorldConfig
    seconds: float

    def row(self, method: str, lists: int | None = None) -> GainRow:
        """The row of a method. Raises KeyError."""
        for one in self.rows:
            if (one.method, one.lists) == (method, lists):
                return one
        raise KeyError((method, lists))

    def family(self, name: str) -> GainRow:
        """The row of a re-ranker, whatever its parameter. Raises KeyError."""
        for one in self.rows:
            if _family(one.method) == name:
                return one
        raise KeyError(name)


Key = tuple[str, int | None]
Cell = tuple[bool, int, int, int]  # fitted, lists, width, candidates
Observe = Callable[[str], None]


def ignore(what: str) -> None:
    """The `Observe` of those who do not ask."""


@dataclass(slots=True)
class Measured:
    """One seed: true U of every request's list by each method, and what its model predicted. [N] each

    Attributes:
        cells: sums over some requests of pointwise, true and predicted U.
    """

    seed: int
    users: int
    true: dict[Key, Float64] = field(default_factory=dict)
    predicted: dict[Key, Float64] = field(default_factory=dict)
    cells: dict[Cell, tuple[float, float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GainOptions:
    """What to measure.

    Attributes:
        requests: a seed; every user has one.
        lists: sizes of logs that step models are trained on.
        rerankers, oracle: MMR, DPP and SSD; greedy and a beam of 8 that know the truth.
        free: a beam of 8 over all candidates, and with it the model that learns items by heart.
        served: the serving loop; without, greedy and beam alone, which is quicker.
        members: of ensembles on the smallest log, whose choice by mean and by lower bound is compared; 0 for
            no such rows, and with `free` only.
        probed: requests of the table of inflation by width and pool, of the smallest log; 0 for no table, and
            with `free` only.
    """

    requests: int = 1000
    lists: tuple[int, ...] = (8000, 600)
    rerankers: bool = True
    oracle: bool = True
    free: bool = False
    served: bool = True
    members: int = 0
    probed: int = 0
    world: WorldConfig = field(default_factory=WorldConfig)
    training: StepTraining = field(default_factory=StepTraining)

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ConfigError("requests", f"{self.requests} is below 1")
        for name in ("members", "probed"):
            if getattr(self, name) < 0:
                raise ConfigError(name, f"{getattr(self, name)} is below 0")
        if any(each < 1 for each in self.lists):
            raise ConfigError("lists", f"{list(self.lists)} must be numbers from 1 on")
        if (self.members or self.probed) and not self.free:
            raise ConfigError("free", f"is off, and members {self.members} and probed {self.probed} need it")


def summarise(found: Sequence[Measured], options: GainOptions, seconds: float) -> GainsReport:
    """Rows over all seeds; of each family of re-rankers the best parameter alone."""
    keys = _best_of_families(found)
    users = np.arange(sum(one.users for one in found), dtype=np.int64)
    names = [(POINTWISE, None), *keys]
    values = np.stack([np.concatenate([one.true[key] for one in found]) for key in names], axis=1)
    drawn = resample(values, users, per_user=False, seed=0)
    rows = []
    for at, key in enumerate(keys, 1):
        draws = 100 * (drawn.draws[:, at] / drawn.draws[:, 0] - 1)
        low, high = interval(draws)
        by_seed = [_gain(one.true[key], one.true[POINTWISE, None]) for one in found]
        inflation = None
        if key in found[0].predicted:
            predicted = sum(float(one.predicted[key].sum()) for one in found)
            inflation = predicted / float(values[:, at].sum())
        rows.append(
            GainRow(
                method=key[0],
                lists=key[1],
                gain=float(np.mean(by_seed)),
                low=low,
                high=high,
                by_seed=tuple(by_seed),
                inflation=inflation,
            )
        )
    return GainsReport(
        rows=tuple(rows),
        margins=tuple(_margins(rows, names, drawn.draws)),
        cells=tuple(_cell(key, found) for key in found[0].cells),
        seeds=tuple(one.seed for one in found),
        requests=options.requests,
        world=options.world,
        seconds=seconds,
    )


def _margins(rows: Sequence[GainRow], names: Sequence[Key], draws: Float64) -> Iterator[Margin]:
    gains = 100 * (draws / draws[:, :1] - 1)
    for mine in rows:
        if mine.method != DEFAULT or mine.lists is None:
            continue
        for other in rows:
            if not (
                _family(other.method) in RERANKERS or (other.method, other.lists) == (GREEDY, mine.lists)
            ):
                continue
            at, against = names.index((mine.method, mine.lists)), names.index((other.method, other.lists))
            low, high = interval(gains[:, at] - gains[:, against])
            yield Margin(
                lists=mine.lists, than=other.method, points=mine.gain - other.gain, low=low, high=high
            )


def _cell(key: Cell, found: Sequence[Measured]) -> InflationCell:
    base, true, predicted = (sum(one.cells[key][at] for one in found) for at in range(3))
    fitted, lists, width, candidates = key
    return InflationCell(
        fitted=fitted,
        lists=lists,
        width=width,
        candidates=candidates,
        gain=100 * (true / base - 1),
        inflation=predicted / true,
    )


def _best_of_families(found: Sequence[Measured]) -> list[Key]:
    means: Mapping[Key, float] = {
        key: float(np.mean([_gain(one.true[key], one.true[POINTWISE, None]) for one in found]))
        for key in found[0].true
        if key[0] != POINTWISE
    }
    best: dict[str, Key] = {}
    for key, mean in means.items():
        family = f"{_family(key[0])} {key[1]}"
        if family not in best or mean > means[best[family]]:
            best[family] = key
    return list(best.values())


def _family(method: str) -> str:
    return method.partition("(")[0]


def _gain(mine: Float64, pointwise: Float64) -> float:
    return 100 * (float(mine.mean()) / float(pointwise.mean()) - 1)
