"""The protocol in a world of known truth: every section of the report, and what is right in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from relaygr.config.limits import Range
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64, Int32, Int64
from relaygr.listwise.folds import Lineage, Part, Split
from relaygr.listwise.lists import ListModel
from relaygr.listwise.step import HeadSpec
from relaygr.training.slate.fit import StepTraining, train_step
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.offline.explored import Explored, of_world
from relaygr.training.slate.offline.linear_judge import LinearConfig, fit_linear
from relaygr.training.slate.offline.policies import TEMPERATURE, Softmax
from relaygr.training.slate.offline.protocol import (
    EvalSlateOptions,
    Observe,
    Requested,
    evaluate_slates,
    ignore,
)
from relaygr.training.slate.offline.report import SlateReport
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.shapes import world_config
from relaygr.training.slate.truth import watched
from relaygr.training.slate.world import HEADS, VALUE, World, WorldConfig

JUDGED = ("similarity:max", "similarity:mean", "count:topic", "recency:topic", "position")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedOptions:
    """Sizes.

    Attributes:
        lists: logged lists of all folds together; users have one each.
        requests: that lists are made for.
        seeds: of the step models.
        temperature: of exploration, in the ranker's logits.
    """

    lists: int = 8000
    requests: int = 300
    seeds: int = 5
    temperature: float = 0.3
    world: WorldConfig = field(default_factory=WorldConfig)
    training: StepTraining = field(default_factory=StepTraining)
    evaluation: EvalSlateOptions = field(default_factory=EvalSlateOptions)

    def __post_init__(self) -> None:
        for name, most in (("lists", 1_000_000), ("requests", 1_000_000), ("seeds", 1000)):
            Range(1, most).check(name, getattr(self, name))
        TEMPERATURE.check("temperature", self.temperature)


def simulated_report(options: SimulatedOptions | None = None, observe: Observe = ignore) -> SlateReport:
    """Train on two folds of a world's logs, evaluate on the third and on fresh requests."""
    options = options or SimulatedOptions()
    world = World(options.world)
    observe(f"logs of {options.lists:,} lists")
    logged = world.requests(options.lists, 1)
    every = of_world(logged, explored_logs(logged, 1, options.temperature))
    split = Split()
    models, selectors = step_models(every.logs, split, options.seeds, options.training, observe)
    observe("training the judge")
    config = LinearConfig(
        heads=tuple(HeadSpec(name=head.name, kind=head.kind) for head in HEADS),
        features=JUDGED,
        exit=options.world.exit,
        fold=split.fold(Part.JUDGE),
    )
    judge = fit_linear(config, every.logs.select(fold_rows(split, Part.JUDGE, every.logs)), VALUE)
    aside: Explored = every.select(fold_rows(split, Part.EVALUATOR, every.logs))
    requests = world.requests(options.requests, 2)
    fresh = explored_logs(requests, 2).logs
    asked = Requested(
        logs=fresh, pools=[requests.pool(n) for n in range(len(requests))], length=options.world.length
    )

    def truth(lists: LoggedLists, picks: Int32) -> Float64:
        return watched(requests, picks).utility

    base = Softmax(temperature=options.temperature, of=HEADS[0].name)
    return evaluate_slates(
        "simulated world",
        models,
        selectors,
        asked,
        judge=judge,
        truth=truth,
        explored=aside,
        held_out=aside.logs,
        relevance_head=HEADS[0].name,
        options=replace(options.evaluation, base=base),
        observe=observe,
    )


def step_models(
    logs: LoggedLists, split: Split, seeds: int, training: StepTraining, observe: Observe
) -> tuple[list[ListModel], list[Lineage]]:
    """One step model a seed, all of them from the split's first fold."""
    some = logs.select(fold_rows(split, Part.STEP, logs))
    models, lineages = [], []
    for seed in range(seeds):
        observe(f"training step model {seed + 1} of {seeds} on {len(some):,} lists")
        trained = train_step(world_config(), some, msgspec.structs.replace(training, seed=seed))
        models.append(ListModel(trained.model, VALUE))
        lineages.append(
            Lineage(version=trained.model.version, fold=split.fold(Part.STEP), arch="step", seed=seed)
        )
    return models, lineages


def fold_rows(split: Split, part: Part, logs: LoggedLists) -> Int64:
    """Lists of the users of a fold. Raises ConfigError if there is none."""
    rows = split.fold(part).rows(logs.users)
    if not len(rows):
        raise ConfigError("lists", f"none of {len(logs)} is of a user of the fold {part.value!r}")
    return rows
