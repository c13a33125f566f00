"""The protocol on MovieLens, where context effects are those of a user model that was fitted to ratings.

Every user's ratings are split by time. A pointwise ranker learns from the first half and is calibrated on the
next tenth. The last part, cut into lists of consecutive ratings, goes to a user model (evaluator's fold of
users) and to the judge (its fold). The user model plays the user: it says whether films of explored lists are
liked behind those before them. The step model learns from that, and chooses lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from relaygr.config.limits import Range
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float32, Float64, Int32, Int64
from relaygr.listwise.folds import Lineage, Part, Split
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import MISSING, Pool
from relaygr.listwise.step import HeadSpec, StepConfig, StepModel
from relaygr.listwise.value import Factor, Term, ValueDocument, ValueFunction
from relaygr.training.slate.fit import StepTraining, train_step
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.offline.explored import Explored, as_lists
from relaygr.training.slate.offline.factors import FactorRanker, calibrated, fit_factors
from relaygr.training.slate.offline.judge import StepJudge
from relaygr.training.slate.offline.linear_judge import LinearConfig, fit_linear
from relaygr.training.slate.offline.policies import TEMPERATURE, Softmax
from relaygr.training.slate.offline.protocol import (
    SEED,
    EvalSlateOptions,
    Observe,
    Requested,
    evaluate_slates,
    ignore,
)
from relaygr.training.slate.offline.report import SlateReport, Source
from relaygr.training.slate.readers.movielens import (
    CANNOT,
    HEADS,
    Films,
    Ratings,
    lists_of,
    read_films,
    read_ratings,
)
from relaygr.training.slate.sampling import list_propensities
from relaygr.training.slate.shapes import default_config

VALUE = ValueFunction(
    ValueDocument(id="liked", terms=(Term(weight=1.0, factors=(Factor(head="like"),)),)), HEADS
)
JUDGED = ("similarity:max", "similarity:mean", "count:topic", "recency:topic", "position")
_FIT, _CALIBRATE = 0.5, 0.6  # of each user's ratings
_FAINT = (
    "what people would like: the user model is a weak one, learned from the order in which ratings were "
    "typed, and only tells whether the list layer finds the effects that this model has"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovieLensOptions:
    """Sizes.

    Attributes:
        length, candidates: of a request; candidates are drawn by the root of their popularity.
        explored: lists of each user of the selector's and of the evaluator's fold.
        requests: of each user of the evaluator's fold, that lists are made for.
        temperature: of exploration, in the ranker's logits.
    """

    length: int = 10
    candidates: int = 60
    explored: int = 8
    requests: int = 2
    seeds: int = 5
    temperature: float = 0.3
    seed: int = 0
    training: StepTraining = field(default_factory=lambda: StepTraining(exit_logit=-20.0))
    evaluation: EvalSlateOptions = field(default_factory=EvalSlateOptions)

    def __post_init__(self) -> None:
        for name in ("length", "explored", "requests", "seeds"):
            Range(1, 1000).check(name, getattr(self, name))
        TEMPERATURE.check("temperature", self.temperature)
        SEED.check("seed", self.seed)
        if self.candidates < self.length:
            raise ConfigError("candidates", f"{self.candidates} is below the length {self.length}")


def movielens_report(
    folder: Path, options: MovieLensOptions | None = None, observe: Observe = ignore
) -> SlateReport:
    """The report for a folder with `ratings.csv` and `movies.csv`, gzip or not.

    Raises:
        ConfigError: a file is missing; DataError: one is wrong.
    """
    options = options or MovieLensOptions()
    observe("reading")
    ratings, films = read_ratings(_file(folder, "ratings.csv")), read_films(_file(folder, "movies.csv"))
    observe("fitting the ranker")
    share = _share_before(ratings)
    ground = _Ground(ratings, films, share, options)
    split = Split()
    later = lists_of(_some(ratings, share >= _CALIBRATE), films, options.length)
    logged = later.scored(ground.ranker, ground.vectors)
    observe("fitting user model and judge")
    shape = msgspec.structs.replace(default_config(HEADS, ("topic",)), exit=False, exit_hidden=0)
    people = _user_model(shape, logged.select(_rows(split, Part.EVALUATOR, logged.users)), options)
    config = LinearConfig(
        heads=tuple(HeadSpec(name=head.name, kind=head.kind) for head in HEADS),
        features=JUDGED,
        exit=False,
        fold=split.fold(Part.JUDGE),
    )
    judge = fit_linear(config, logged.select(_rows(split, Part.JUDGE, logged.users)), VALUE)
    users = np.unique(logged.users)
    learners, testers = (users[_rows(split, part, users)] for part in (Part.STEP, Part.EVALUATOR))
    observe("simulated logs")
    lessons = ground.explored(np.repeat(learners, options.explored), people, 1)
    models, selectors = list[ListModel](), list[Lineage]()
    for seed in range(options.seeds):
        observe(f"training step model {seed + 1} of {options.seeds} on {len(lessons):,} lists")
        training = msgspec.structs.replace(options.training, seed=seed)
        trained = train_step(shape, lessons.logs, training)
        models.append(ListModel(trained.model, VALUE))
        fold = split.fold(Part.STEP)
        selectors.append(Lineage(version=trained.model.version, fold=fold, arch="step", seed=seed))
    askers = np.repeat(testers, options.requests)
    asked = ground.requested(askers, 2)

    def truth(lists: LoggedLists, picks: Int32) -> Float64:
        return people.predict(lists).utility

    return evaluate_slates(
        "MovieLens",
        models,
        selectors,
        asked,
        judge=judge,
        truth=truth,
        truth_source=Source.USER_MODEL,
        explored=ground.explored(np.repeat(testers, options.explored), people, 3),
        held_out=logged.select(_rows(split, Part.STEP, logged.users)),
        relevance_head=HEADS[0].name,
        cannot=(*CANNOT, _FAINT),
        options=replace(options.evaluation, base=Softmax(temperature=options.temperature, of=HEADS[0].name)),
        observe=observe,
    )


class _Ground:
    """Ranker, vectors and candidates from the earlier ratings."""

    def __init__(self, ratings: Ratings, films: Films, share: Float64, options: MovieLensOptions) -> None:
        self._options, self._films = options, films
        early, middle = _some(ratings, share < _FIT), _some(ratings, (share >= _FIT) & (share < _CALIBRATE))
        fitted = fit_factors(early.users, early.items, early.like, seed=options.seed)
        self.ranker: FactorRanker = calibrated(fitted, middle.users, middle.items, middle.like)
        known, counts = np.unique(early.items, return_counts=True)
        self._items, self._weight = known, np.sqrt(counts)
        self._early = early
        if len(known) < options.candidates:
            raise ConfigError("candidates", f"{options.candidates} of {len(known)} films with ratings")
        frequency = films.genres.sum(axis=0)
        plain = films.genres * np.log(len(films.ids) / np.maximum(frequency, 1.0))
        without = (films.genres.sum(axis=1) == 0).astype(np.float64)
        table = np.concatenate([plain, without[:, None]], axis=1)
        self._table = (table / np.linalg.norm(table, axis=1, keepdims=True)).astype(np.float32)

    def vectors(self, items: Int64) -> Float32:
        """Genres by rarity, of unit length. [n, Dv]"""
        found: Float32 = self._table[self._places(items)]
        return found

    def _places(self, items: Int64) -> Int64:
        places = np.minimum(np.searchsorted(self._films.ids, items), len(self._films.ids) - 1)
        unknown = items[self._films.ids[places] != items]
        if len(unknown):
            raise ConfigError("movies.csv", f"lacks film {unknown[0]}, which ratings name")
        return places

    def requested(self, users: Int64, seed: int) -> Requested:
        """One request of each user int64 [N], over films that the user had not rated early."""
        pools = self._pools(users, seed)
        first = np.tile(np.arange(self._options.length, dtype=np.int32), (len(users), 1))
        activity = np.searchsorted(self._early.users, users, side="right")
        activity = activity - np.searchsorted(self._early.users, users, side="left")
        logs = as_lists(_template(pools, users, self._options.length), pools, first)
        return Requested(logs=logs, pools=pools, length=self._options.length, activity=activity)

    def explored(self, users: Int64, people: StepJudge, seed: int) -> Explored:
        """Lists drawn by Plackett-Luce from the ranker's logits; the user model says what is liked."""
        options = self._options
        pools = self._pools(users, seed)
        scores = np.stack([pool.outputs[:, 0] for pool in pools]).astype(np.float64) / options.temperature
        random = np.random.default_rng((options.seed, seed, 1))
        keys = scores + random.gumbel(size=scores.shape)
        picks = np.argsort(-keys, axis=1)[:, : options.length].astype(np.int32)
        lists = as_lists(_template(pools, users, options.length), pools, picks)
        liked = random.random(lists.labels.shape) < people.predict(lists).heads
        logs = replace(
            lists, labels=liked.astype(np.float32), log_propensity=list_propensities(scores, picks)
        )
        return Explored(logs, pools, picks)

    def _pools(self, users: Int64, seed: int) -> list[Pool]:
        options = self._options
        random = np.random.default_rng((options.seed, seed, 0))
        made = []
        for user in users.tolist():
            low, high = np.searchsorted(self._early.users, [user, user + 1])
            weight = np.where(np.isin(self._items, self._early.items[low:high]), 0.0, self._weight)
            # Keys whose largest are a weighted draw without replacement.
            keys = np.where(weight > 0, np.log(weight + 1e-300) + random.gumbel(size=len(weight)), -np.inf)
            items = np.sort(self._items[np.argsort(-keys)[: options.candidates]])
            said = self.ranker(np.full(len(items), user), items)
            places = self._places(items)
            made.append(
                Pool(
                    ids=items,
                    heads=HEADS,
                    outputs=said,
                    attributes={"topic": self._films.topics[places]},
                    vectors=self._table[places],
                )
            )
        return made


def _template(pools: Sequence[Pool], users: Int64, length: int) -> LoggedLists:
    """Requests in the form of lists of their first candidates."""
    N = len(users)
    zeros, full = np.zeros(N, dtype=np.int64), np.full(N, length, dtype=np.int64)
    return LoggedLists(
        heads=HEADS,
        users=users,
        items=np.stack([pool.ids[:length] for pool in pools]),
        outputs=np.stack([pool.outputs[:length] for pool in pools]),
        labels=np.full((N, length, len(HEADS)), np.nan, dtype=np.float32),
        attributes={"topic": np.full((N, length), MISSING, dtype=np.int64)},
        vectors=None,
        shown=full,
        consumed=full,
        more=zeros.astype(bool),
        asked=full,
        surface=zeros,
        page=zeros,
        session=zeros,
        log_propensity=np.full((N, length), np.nan),
    )


def _user_model(shape: StepConfig, logs: LoggedLists, options: MovieLensOptions) -> StepJudge:
    training = msgspec.structs.replace(options.training, allow_unexplored=True, seed=options.seed + 1000)
    model: StepModel = train_step(shape, logs, training).model
    return StepJudge(model, VALUE)


def _share_before(ratings: Ratings) -> Float64:
    """Of a user's ratings, the share that stands before each. [R]"""
    _, firsts, counts = np.unique(ratings.users, return_index=True, return_counts=True)
    before = np.arange(len(ratings)) - np.repeat(firsts, counts)
    found: Float64 = before / np.repeat(counts, counts)
    return found


def _some(ratings: Ratings, kept: Int64 | np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Ratings:
    return Ratings(ratings.users[kept], ratings.items[kept], ratings.times_s[kept], ratings.like[kept])


def _rows(split: Split, part: Part, users: Int64) -> Int64:
    rows = split.fold(part).rows(users)
    if not len(rows):
        raise ConfigError("ratings", f"no user is in the fold {part.value!r}")
    return rows


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise ConfigError("--data", f"{folder} has neither {name} nor {name}.gz")
