"""The list layer from its settings: every file is read and checked before a request is served."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from relaygr.config.slate import SlateConfig
from relaygr.core.clock import Clock
from relaygr.core.errors import ConfigError
from relaygr.listwise.choose import Choice
from relaygr.listwise.explore import Explorer
from relaygr.listwise.features import Kind
from relaygr.listwise.folds import check_role
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.generators.demotion import Demotion
from relaygr.listwise.generators.dpp import Dpp
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.one_shot import OneShot
from relaygr.listwise.generators.plackett_luce import PlackettLuce
from relaygr.listwise.generators.ssd import Ssd
from relaygr.listwise.items import ItemTable, read_items
from relaygr.listwise.list_net import ListNet
from relaygr.listwise.lists import ListModel
from relaygr.listwise.pool import Head, HeadKind
from relaygr.listwise.proposal import Generator
from relaygr.listwise.request import Mode
from relaygr.listwise.result import Stage
from relaygr.listwise.rules.document import read_rules
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import StepModel
from relaygr.listwise.trained import TrainedEvaluator
from relaygr.listwise.trust import Trust
from relaygr.listwise.value import ValueFunction, load_value
from relaygr.models.presets import AnyConfig

# Some times what a whole list takes: greedy's list then is not needed before the beam's.
_JOINT_MS = 20.0


def heads_of(shape: AnyConfig) -> tuple[Head, ...]:
    """The heads of a ranker as the list layer names them."""
    return tuple(
        Head(task, HeadKind.REGRESSION if task in shape.regressions else HeadKind.BINARY)
        for task in shape.tasks
    )


def open_slates(config: SlateConfig, heads: tuple[Head, ...], clock: Clock | None = None) -> Slates:
    """The serving loop over the value function and step model of the settings.

    Raises:
        ConfigError: a file cannot be read or does not fit the ranker; names the setting.
    """
    try:
        value = load_value(Path(config.value), heads)
    except ConfigError as error:
        raise _under(config, "value", error) from error
    if not config.step:
        if config.mode != "off":
            raise ConfigError(
                config.key("mode"), f"{config.mode!r} needs a step model: {config.key('step')} is empty"
            )
        return Slates(value, mode=Mode.OFF, clock=clock)
    try:
        step = StepModel.load(Path(config.step))
        check_role(step.config.fold, "a step model")
        model = ListModel(step, value)
    except ConfigError as error:
        raise _under(config, "step", error) from error
    return make_slates(config, model, clock, _evaluator(config, value))


def make_slates(
    config: SlateConfig,
    model: ListModel,
    clock: Clock | None = None,
    evaluator: TrainedEvaluator | None = None,
) -> Slates:
    """The serving loop of a step model that is open; it values lists itself where no evaluator is given."""
    return Slates(
        model.value,
        model,
        generators=_generators(config, model, model.value.heads),
        evaluator=evaluator,
        choice=_choice(config, evaluator),
        trust=Trust(config.trust_top),
        mode=Mode(config.mode),
        clock=clock,
        joint_ms=_JOINT_MS,
        explorer=_explorer(config),
    )


def open_rules(config: SlateConfig) -> RuleSet | None:
    """The rules of every list; None for none. ConfigError naming the setting."""
    if not config.rules:
        return None
    try:
        return RuleSet(read_rules(Path(config.rules)))
    except ConfigError as error:
        raise _under(config, "rules", error) from error


def open_items(config: SlateConfig) -> ItemTable | None:
    """The table of items; None for none. ConfigError naming the setting."""
    if not config.items:
        return None
    try:
        return read_items(Path(config.items))
    except ConfigError as error:
        raise _under(config, "items", error) from error


def needed(slates: Slates, rules: RuleSet | None) -> dict[str, str]:
    """Attributes that a rule or a model reads, and who of them does."""
    found: dict[str, str] = {}
    for rule in rules.document.rules if rules is not None else ():
        attribute = getattr(rule, "attribute", None)
        if attribute is not None:
            found.setdefault(attribute, f"rule {rule.name!r}")
    return {**read_by_models(slates), **found}


def read_by_models(slates: Slates) -> dict[str, str]:
    """Attributes that step model, evaluator or distilled generator read, and who of them does."""
    found: dict[str, str] = {}
    if slates.step is not None:
        found |= dict.fromkeys(slates.step.step.features.attributes, "the step model")
    if isinstance(slates.evaluator, TrainedEvaluator):
        found = dict.fromkeys(slates.evaluator.attributes, "the evaluator") | found
    for one in _distilled(slates):
        found = dict.fromkeys(one.config.attributes, one.name) | found
    return found


def vectors_read_by(slates: Slates) -> str | None:
    """Who reads similarities or components of vectors; None if nobody does."""
    if slates.step is not None:
        features = slates.step.step.features
        if features.has(Kind.SIMILARITY) or features.has(Kind.VECTOR):
            return "the step model"
    if isinstance(slates.evaluator, TrainedEvaluator) and slates.evaluator.needs_vectors:
        return "the evaluator"
    return next((one.name for one in _distilled(slates) if one.config.similarity), None)


def _distilled(slates: Slates) -> list[OneShot]:
    return [one for one in slates.proposers if isinstance(one, OneShot)]


def _generators(
    config: SlateConfig, model: ListModel, heads: tuple[Head, ...]
) -> dict[Stage, Sequence[Generator]]:
    others: list[Generator] = []
    for name in config.generators:
        match name:
            case "mmr":
                others.append(Mmr())
            case "dpp":
                others.append(Dpp())
            case "ssd":
                others.append(Ssd())
            case "demotion":
                others.append(Demotion())
            case "plackett_luce":
                others.append(PlackettLuce())
            case "one_shot":
                others.append(_one_shot(config, heads))
            case "greedy" | "beam":
                pass
    greedy = "greedy" in config.generators
    beam = "beam" in config.generators and not (greedy and config.beam_width == 1)  # which is greedy too
    return {
        Stage.GREEDY: [Beam(model, 1, config.top)] if greedy else [],
        Stage.BEAM: [Beam(model, config.beam_width, config.top)] if beam else [],
        Stage.GENERATORS: others,
    }


def _explorer(config: SlateConfig) -> Explorer | None:
    if not config.explore_share:
        return None
    return Explorer(
        share=config.explore_share, temperature=config.explore_temperature, seed=config.explore_seed
    )


def _evaluator(config: SlateConfig, value: ValueFunction) -> TrainedEvaluator | None:
    if not config.evaluator:
        return None
    try:
        net = ListNet.load(Path(config.evaluator))
        check_role(net.config.fold, "an evaluator")
        return TrainedEvaluator(net, value)
    except ConfigError as error:
        raise _under(config, "evaluator", error) from error


def _choice(config: SlateConfig, evaluator: TrainedEvaluator | None) -> Choice:
    if config.choice != "conformal":
        return Choice(kappa=config.kappa, paired=config.choice == "paired")
    calibration = None if evaluator is None else evaluator.net.config.calibration
    if calibration is None:
        raise ConfigError(
            config.key("choice"), f"'conformal' needs quantiles, and {config.evaluator} holds none"
        )
    return Choice(conformal=calibration.conformal())


def _one_shot(config: SlateConfig, heads: tuple[Head, ...]) -> OneShot:
    try:
        found = OneShot.load(Path(config.one_shot))
        check_role(found.config.fold, "a distilled scorer")
    except ConfigError as error:
        raise _under(config, "one_shot", error) from error
    mine = tuple(Head(each.name, each.kind) for each in found.config.heads)
    if mine != heads:
        raise ConfigError(config.key("one_shot"), f"its heads {mine} are not the ranker's {heads}")
    return found


def _under(config: SlateConfig, name: str, error: ConfigError) -> ConfigError:
    return ConfigError(config.key(name), f"{getattr(config, name)}: {error}")
