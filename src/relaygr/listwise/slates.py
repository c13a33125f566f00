"""The list layer as a whole: from one request's scored candidates to one list, within its time.

The rule-repaired pointwise list is made first and can always be returned. Whatever goes wrong behind it (the
time, a number that is not finite, an exception, a broken rule) ends in that list, with the reason. A proposal
that breaks a rule does not compete; what is returned is checked once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.errors import ConfigError, RelayError, RequestError
from relaygr.listwise.arrays import Int32, Int64
from relaygr.listwise.ballot import Ballot
from relaygr.listwise.choose import Choice
from relaygr.listwise.counts import SlateCounts
from relaygr.listwise.errors import BrokenRuleError, InfeasibleError, SlateDeadlineError, SlateNanError
from relaygr.listwise.evaluate import Evaluator, Rescore
from relaygr.listwise.explain import Explanation, explain
from relaygr.listwise.explore import Explorer
from relaygr.listwise.features import Kind
from relaygr.listwise.generators.beam import Beam, BeamWithGreedy
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.pointwise import NAME as POINTWISE
from relaygr.listwise.generators.pointwise import Pointwise
from relaygr.listwise.lists import ListModel
from relaygr.listwise.masks import never
from relaygr.listwise.pool import Pool
from relaygr.listwise.proposal import Budget, Generator, Proposal
from relaygr.listwise.request import Mode, SlateAsk
from relaygr.listwise.result import Dropped, Exploration, Reason, SlateResult, Stage, Versions
from relaygr.listwise.scene import Scene
from relaygr.listwise.trust import Region, Trust
from relaygr.listwise.value import ValueFunction

LOOKAHEAD_SHARE = 0.5  # of a request's time: then rules look ahead no further


@dataclass(slots=True)
class _Course:
    """How far a request has got; filled while it runs, so that a failure finds what is ready."""

    budget: Budget
    clock: Clock
    reached: Stage = Stage.FALLBACK
    stage_ms: dict[str, float] = field(default_factory=dict)
    timed_out: bool = False
    exploration: Exploration | None = None
    dropped: Sequence[Dropped] = ()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.budget.stage = name
        began = self.clock.now_s()
        try:
            yield
        finally:
            self.stage_ms[name] = (self.clock.now_s() - began) * 1e3


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A decision, as columns of the region's scene."""

    region: Region
    ballot: Ballot
    place: int
    explanation: Explanation | None
    context: dict[str, float]

    @property
    def proposal(self) -> Proposal:
        return self.ballot.proposals[self.place]


class Slates:
    """Serves slates. Its parts are immutable but for the counters, so that threads may share it.

    Args:
        value: the value function.
        step: the step model; None serves rule-repaired pointwise lists only.
        generators: by stage; the pointwise fallback is always in.
        evaluator: `Rescore` of the step model by default.
        choice: how to choose among evaluated lists.
        trust: the region that lists stay in.
        mode: of requests that name none.
        clock: of deadlines and timings.
        joint_ms: with so much time left, greedy and the beam are one search, whose lists are the same as of
            two; None for never. Then greedy's list is not there before the beam's.
        explorer: draws the lists of a share of the requests in mode `on`; None for none.

    Raises:
        ConfigError: step model and value function are of different heads; two generators have one name.
    """

    def __init__(
        self,
        value: ValueFunction,
        step: ListModel | None = None,
        *,
        generators: dict[Stage, Sequence[Generator]] | None = None,
        evaluator: Evaluator | None = None,
        choice: Choice | None = None,
        trust: Trust | None = None,
        mode: Mode = Mode.ON,
        clock: Clock | None = None,
        joint_ms: float | None = None,
        explorer: Explorer | None = None,
    ) -> None:
        self.value, self.step = value, step
        if step is not None and step.value.version != value.version:
            raise ConfigError("value", f"{value.version} is not the step model's {step.value.version}")
        if step is None and mode is not Mode.OFF:
            raise ConfigError("mode", f"{mode} needs a step model")
        self.evaluator = evaluator or (None if step is None else Rescore([step]))
        if generators is None:
            generators = {} if step is None else default_generators(step)
        self._generators = {stage: tuple(generators.get(stage, ())) for stage in GENERATING}
        names = [POINTWISE] + [each.name for group in self._generators.values() for each in group]
        if len(set(names)) != len(names):
            raise ConfigError("generators", f"{names} must be distinct names")
        self._joint_s = math.inf if joint_ms is None else joint_ms / 1e3
        self._jointly = _joined(self._generators)
        self._fallback = Pointwise()
        self._choice, self._trust = choice or Choice(), trust or Trust()
        self._mode, self._clock = mode, clock or MonotonicClock()
        self.explorer = explorer
        self.counts = SlateCounts()

    @property
    def proposers(self) -> tuple[Generator, ...]:
        """What proposes lists beside the fallback, in the order of the stages."""
        return tuple(each for stage in GENERATING for each in self._generators[stage])

    @property
    def generators(self) -> tuple[str, ...]:
        """Names of the proposers."""
        return tuple(each.name for each in self.proposers)

    def serve(self, ask: SlateAsk, pool: Pool) -> SlateResult:
        """One list from the candidates of one request.

        Raises:
            InfeasibleError: no list satisfies the rules that are never relaxed.
            RequestError: the request does not fit the models.
            BrokenRuleError: even the fallback violates a rule.
        """
        deadline, late = None, never
        if ask.budget_ms is not None:
            began_s, limit_s = self._clock.now_s(), ask.budget_ms / 1e3
            deadline = began_s + limit_s
            late = partial(self._past, began_s + LOOKAHEAD_SHARE * limit_s)
        course = _Course(Budget(self._clock, deadline), self._clock)
        mode = self._mode if ask.mode is None else ask.mode
        if mode is not Mode.OFF and self.step is None:
            raise RequestError("mode", f"{mode} needs a step model, and this server has none")
        with course.stage(Stage.FALLBACK):
            scene = self._scene(ask, pool, late)
        chosen, reason, error = None, Reason.OFF, ""
        if mode is Mode.ON:
            chosen = self._explored(scene, course)
        if mode is not Mode.OFF and chosen is None:
            chosen, reason, error = self._attempt(scene, course)
        result = self._result(scene, mode, course, chosen, reason, error)
        if mode is Mode.SHADOW:
            kept = reason if chosen is None else Reason.SHADOW
            shadow = result if chosen is not None else None
            result = self._result(scene, mode, course, None, kept, error, shadow)
        self.counts.add(result, course.timed_out)
        return result

    def _past(self, moment_s: float) -> bool:
        return self._clock.now_s() >= moment_s

    def serve_batch(self, asks: Sequence[SlateAsk], pools: Sequence[Pool]) -> list[SlateResult | RelayError]:
        """The same as one call of `serve` each; a request's error stands in its place."""
        results: list[SlateResult | RelayError] = []
        for ask, pool in zip(asks, pools, strict=True):
            try:
                results.append(self.serve(ask, pool))
            except RelayError as error:
                results.append(error)
        return results

    def scene(self, ask: SlateAsk, pool: Pool) -> Scene:
        """The request as generators and evaluators see it, its fallback included; raises as `serve`."""
        return self._scene(ask, pool)

    def _scene(self, ask: SlateAsk, pool: Pool, late: Callable[[], bool] = never) -> Scene:
        if pool.heads != self.value.heads:
            raise RequestError("heads", f"{pool.heads} are not the value function's {self.value.heads}")
        value = self.value(pool.natural())
        order = np.argsort(-value, kind="stable")
        ranked, value = pool.select(order), value[order]
        walk = ask.rules.open(ranked, value, ask.length, ask.shown, ask.allow_short, late)
        scene = Scene(ask, ranked, value, walk, order.astype(np.int64))
        made = self._fallback.propose(scene, Budget(self._clock))
        if not made:
            raise InfeasibleError("rules", "no list was found that satisfies them")
        scene = scene.with_fallback(made[0].picks)
        self._check(scene, made[0].picks)
        return scene

    def _check(self, scene: Scene, picks: Int32) -> None:
        found = _broken(scene, picks)
        if found:
            raise BrokenRuleError("; ".join(found))

    def _explored(self, scene: Scene, course: _Course) -> _Chosen | None:
        """A list that was drawn; None if none was wanted, or if `course.exploration` says what failed."""
        explorer, ask, evaluator = self.explorer, scene.ask, self.evaluator
        if explorer is None or evaluator is None or ask.unrestricted or not explorer.takes(ask.explore):
            return None
        try:
            with course.stage("exploration"):
                course.budget.check()
                region = self._trust.region(scene)
                drawn = explorer.draw(region.scene, course.budget)
            if drawn is None:
                course.exploration = Exploration.RESCUED
                return None
            ballot = Ballot(region.scene)
            ballot.add([drawn])
            with course.stage(Stage.EVALUATION):
                course.budget.check()
                ballot.evaluate(evaluator)
            found = self._explained(region, ballot, 0, course)
            self._check(scene, region.columns[drawn.picks].astype(np.int32))
        except SlateDeadlineError:
            course.exploration = Exploration.DEADLINE
            return None
        except Exception:  # noqa: BLE001 - the list is chosen then, and says what is wrong if that fails too
            course.exploration = Exploration.ERROR
            return None
        course.exploration, course.reached = Exploration.DRAWN, Stage.EVALUATION
        return found

    def _attempt(self, scene: Scene, course: _Course) -> tuple[_Chosen | None, Reason, str]:
        try:
            chosen = self._decide(scene, course)
            if chosen is None:
                return None, Reason.DEADLINE, ""
            self._check(scene, chosen.region.columns[chosen.proposal.picks].astype(np.int32))
            return chosen, Reason.DEADLINE, ""
        except SlateNanError as error:
            return None, Reason.NAN, str(error)
        except BrokenRuleError as error:
            return None, Reason.RULES, str(error)
        except Exception as error:  # noqa: BLE001 - whatever fails here, the fallback is ready
            return None, Reason.ERROR, f"{type(error).__name__}: {error}"

    def _decide(self, scene: Scene, course: _Course) -> _Chosen | None:
        """The best list that was evaluated in time; None if there is none."""
        assert self.step is not None
        assert self.evaluator is not None
        assert scene.fallback is not None
        budget, evaluator = course.budget, self.evaluator
        generators = self._jointly if budget.left_s >= self._joint_s else self._generators
        region = Trust.everything(scene) if scene.ask.unrestricted else self._trust.region(scene)
        assert region.scene.fallback is not None
        ballot = Ballot(region.scene)
        ballot.add([Proposal(region.scene.fallback, POINTWISE)])
        course.dropped = ballot.dropped

        def broken(picks: Int32) -> Sequence[str]:
            budget.check()
            outside = not ((picks >= 0) & (picks < len(region.columns))).all()
            return (
                ["picks: no candidates of the region"] if outside else _broken(scene, region.columns[picks])
            )

        try:
            for stage in GENERATING:
                with course.stage(stage):
                    for generator in generators[stage]:
                        budget.check()
                        made = generator.propose(region.scene, budget)
                        ballot.add((one for one in made if region.holds(one.picks)), broken)
                    if budget.limited and evaluator.light:
                        budget.check()
                        ballot.evaluate(evaluator)
                course.reached = stage
            with course.stage(Stage.EVALUATION):
                budget.check()
                ballot.evaluate(evaluator)
            course.reached = Stage.EVALUATION
        except SlateDeadlineError:
            course.timed_out = True
            if not ballot.valued:
                return None
        place = ballot.choose(self._choice)
        if course.timed_out:
            return _Chosen(region, ballot, place, None, {})
        return self._explained(region, ballot, place, course)

    def _explained(self, region: Region, ballot: Ballot, place: int, course: _Course) -> _Chosen:
        assert self.step is not None
        with course.stage("explanation"):
            picks = ballot.proposals[place].picks
            values = self.step.of(region.scene, picks)
            explanation = explain(self.step, region.scene, picks, values)
            means = values.context[0].mean(axis=1).tolist()
        context = dict(zip(self.step.step.features.names, means, strict=True))
        return _Chosen(region, ballot, place, explanation, context)

    def _result(
        self,
        scene: Scene,
        mode: Mode,
        course: _Course,
        chosen: _Chosen | None,
        reason: Reason,
        error: str,
        shadow: SlateResult | None = None,
    ) -> SlateResult:
        ask, walk = scene.ask, scene.walk
        assert scene.fallback is not None
        versions = Versions(self.value.version, ask.rules.version)
        if mode is not Mode.OFF and self.step is not None and self.evaluator is not None:
            versions = Versions(
                self.value.version, ask.rules.version, self.step.step.version, self.evaluator.version
            )
        columns = scene.fallback if chosen is None else chosen.region.columns[chosen.proposal.picks]
        pool = () if chosen is None else chosen.ballot.candidates(self._choice)
        mine = None if chosen is None else pool[chosen.place]
        explanation = None if chosen is None else chosen.explanation
        drawn = chosen is not None and course.exploration is Exploration.DRAWN
        steps = chosen.proposal.steps if chosen is not None and drawn else None
        late = course.timed_out and mine is not None and chosen is not None and chosen.place == 0
        return SlateResult(
            request_id=ask.request_id,
            items=scene.pool.ids[columns],
            picks=scene.columns[columns].astype(np.int32),
            generator=POINTWISE if mine is None else mine.generator,
            mode=mode,
            versions=versions,
            stage_reached=course.reached,
            fallback_reason=reason if chosen is None else (Reason.DEADLINE if late else None),
            error=error,
            utility=None if explanation is None else explanation.utility,
            score=None if mine is None else mine.score,
            lower_bound=None if mine is None else mine.lower_bound,
            log_propensity=None if mine is None else mine.log_propensity,
            unrestricted=ask.unrestricted,
            relaxations=walk.relaxations,
            lookahead_budget=walk.budget_hits,
            stage_ms=dict(course.stage_ms),
            explanation=explanation,
            context={} if chosen is None else chosen.context,
            pool=pool,
            shadow=shadow,
            exploration=course.exploration,
            log_propensities=() if steps is None else tuple(steps.tolist()),
            dropped=tuple(course.dropped),
        )


# Stages that propose lists, in their order.
GENERATING = (Stage.GREEDY, Stage.BEAM, Stage.GENERATORS)


def _broken(scene: Scene, columns: Int32 | Int64) -> tuple[str, ...]:
    """What breaks a rule that holds, by the independent checker."""
    ask, walk = scene.ask, scene.walk
    picks = columns.astype(np.int32)
    return ask.rules.violations(scene.pool, picks, walk.length, ask.shown, walk.relaxations)


def default_generators(step: ListModel) -> dict[Stage, Sequence[Generator]]:
    """Greedy, a beam of 4 lists over the top 30, and MMR where the step model asks for vectors as well."""
    similar = step.step.features.has(Kind.SIMILARITY)
    return {
        Stage.GREEDY: (Beam(step, 1),),
        Stage.BEAM: (Beam(step),),
        Stage.GENERATORS: (Mmr(),) if similar else (),
    }


def _joined(generators: dict[Stage, tuple[Generator, ...]]) -> dict[Stage, tuple[Generator, ...]]:
    """The same lists in the same order, with greedy and the beam behind it by one search."""
    greedy, beams = generators[Stage.GREEDY], generators[Stage.BEAM]
    if not (greedy and beams) or not BeamWithGreedy.joins(greedy[-1], beams[0]):
        return generators
    assert isinstance(greedy[-1], Beam)
    assert isinstance(beams[0], Beam)
    both = BeamWithGreedy(greedy[-1], beams[0])
    return {**generators, Stage.GREEDY: greedy[:-1], Stage.BEAM: (both, *beams[1:])}
