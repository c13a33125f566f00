"""`relaygr eval slate`: lists by each method, judged, estimated from explored logs, and described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from relaygr.cli.evaluate_slate_tables import print_report
from relaygr.cli.report import write_json
from relaygr.cli.steps import telling
from relaygr.config.paths import check_file
from relaygr.core.errors import ConfigError
from relaygr.listwise.items import read_items
from relaygr.listwise.rules.document import read_rules
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.trust import Trust
from relaygr.training.slate.offline.logged import LoggedOptions, logged_report
from relaygr.training.slate.offline.movielens import MovieLensOptions, movielens_report
from relaygr.training.slate.offline.policies import Softmax
from relaygr.training.slate.offline.protocol import EvalSlateOptions, Observe
from relaygr.training.slate.offline.report import SlateReport
from relaygr.training.slate.offline.simulated import SimulatedOptions, simulated_report

Folders = Annotated[tuple[Path, ...], Parameter(negative="")]
_LOGS, _DEMO, _SIMULATE = "--logs", "--demo", "--simulate"
_GOES_WITH = {
    **dict.fromkeys(
        (
            "--value",
            "--model",
            "--judge",
            "--items",
            "--scores",
            "--trust-top",
            "--rules",
            "--relevance",
            "--unrecorded",
        ),
        (_LOGS,),
    ),
    "--data": (_DEMO,),
    "--lists": (_SIMULATE,),
    "--length": (_LOGS, _DEMO),
    "--seeds": (_DEMO, _SIMULATE),
}


def slate(
    *,
    logs: Path | None = None,
    value: Path | None = None,
    model: Folders = (),
    judge: Path | None = None,
    items: Path | None = None,
    demo: Literal["movielens"] | None = None,
    data: Path | None = None,
    simulate: Annotated[bool, Parameter(negative="")] = False,
    lists: int | None = None,
    requests: int | None = None,
    length: int | None = None,
    seeds: int | None = None,
    temperature: float | None = None,
    scores: str | None = None,
    trust_top: int | None = None,
    rules: Path | None = None,
    strength: Annotated[tuple[float, ...], Parameter(negative="")] = (1.0, 4.0),
    relevance: str | None = None,
    unrecorded: Annotated[bool, Parameter(negative="")] = False,
    seed: int = 0,
    json: Path | None = None,
) -> None:
    """Evaluate step models offline: on logged lists, on MovieLens, or in a simulated world.

    A report says what lists of each method are worth to an independent judge, what explored logs say of
    policies (with effective sample sizes), how varied the lists are and what they cost; and what these data
    cannot show. Exactly one of --logs, --demo and --simulate is needed; options of another one are refused.

    Parameters
    ----------
    logs: Path | None
        Folder of a log of served lists, with candidates and propensities.
    value: Path | None
        The value function, with --logs.
    model: tuple[Path, ...]
        Folders of step models, with --logs: one of each seed of the training. Copies of one are refused.
    judge: Path | None
        Folder of the judge, with --logs; by default a linear judge is fitted to the judge's fold of users.
    items: Path | None
        Attributes and vectors of items, with --logs.
    demo: Literal["movielens"] | None
        Run everything on a small public data set, from ratings to the report.
    data: Path | None
        Folder of the data set, with --demo.
    simulate: bool
        A world whose users we know.
    lists: int
        Logged lists of the simulated world (8,000).
    requests: int | None
        That lists are made for: of all (--logs 500, --simulate 300), of each user with --demo (2).
    length: int | None
        Positions of a list, with --logs and --demo; by default what the log's requests asked for, or 10.
    seeds: int
        Of step models that are trained here, with --demo and --simulate (5); fewer make a preliminary report.
    temperature: float | None
        Of the softmax that logged the explored lists: 0.3; with --logs what servers wrote there, else 0.1.
    scores: str | None
        What that softmax was of, with --logs: unit (the default), raw, or a head.
    trust_top: int | None
        Candidates by pointwise rank that explored lists were drawn from, with --logs: what servers wrote
        there, else all.
    rules: Path | None
        Rules that explored lists were made under, with --logs; lists under others are left out.
    strength: tuple[float, ...]
        Of policies that lean from it towards the step model.
    relevance: str | None
        Head whose labels are reordered for NDCG and MAP, with --logs.
    unrecorded: bool
        Take models that do not record whose users they learned from, with --logs.
    seed: int
        Of bootstraps and of what is drawn.
    json: Path | None
        Write the report to this file.
    """
    check_file("--json", json)
    if sum((logs is not None, demo is not None, simulate)) != 1:
        raise ConfigError("eval slate", "needs exactly one of --logs, --demo and --simulate")
    given: dict[str, object] = {
        "--value": value, "--model": model, "--judge": judge, "--items": items, "--scores": scores,
        "--trust-top": trust_top, "--rules": rules,
        "--relevance": relevance, "--unrecorded": unrecorded, "--data": data, "--lists": lists,
        "--length": length, "--seeds": seeds,
    }  # fmt: skip
    mode = _LOGS if logs is not None else _DEMO if demo is not None else _SIMULATE
    # A number may be 0, which is not nothing.
    _check_modes(
        mode, [name for name, what in given.items() if what is not None and what is not False and what != ()]
    )
    options = EvalSlateOptions(strengths=strength, seed=seed, unrecorded=unrecorded)
    with telling("evaluating") as tell:
        if logs is not None:
            base = Softmax(temperature=0.1 if temperature is None else temperature, of=scores or "unit")
            if length is not None and length < 1:
                raise ConfigError("--length", f"{length} is below 1")
            wanted = LoggedOptions(
                requests=500 if requests is None else requests,
                length=0 if length is None else length,
                relevance_head=relevance,
                as_drawn=temperature is None and scores is None and trust_top is None,
                evaluation=replace(
                    options,
                    base=base,
                    rules=None if rules is None else RuleSet(read_rules(rules)),
                    trust=None if trust_top is None else Trust(trust_top),
                ),
            )
            report = _logged(logs, value, model, judge, items, wanted, tell)
        elif demo is not None:
            if data is None:
                raise ConfigError("--data", "the folder of the data set is needed with --demo")
            report = movielens_report(data, _movielens(options, requests, length, seeds, temperature), tell)
        else:
            report = simulated_report(_simulated(options, lists, requests, seeds, temperature), tell)
    write_json(json, report)
    print_report(report, Console())


def _check_modes(mode: str, given: Sequence[str]) -> None:
    """Raise ConfigError naming the first option that goes with other modes only."""
    for name in given:
        wanted = _GOES_WITH[name]
        if mode not in wanted:
            raise ConfigError(name, f"goes with {' or '.join(wanted)}, not with {mode}")


def _logged(
    logs: Path,
    value: Path | None,
    model: tuple[Path, ...],
    judge: Path | None,
    items: Path | None,
    options: LoggedOptions,
    tell: Observe,
) -> SlateReport:
    if value is None or not model:
        raise ConfigError("--logs", "needs --value and at least one --model")
    table = None if items is None else read_items(items)
    return logged_report(logs, value, model, judge, table, options, tell)


def _movielens(
    options: EvalSlateOptions,
    requests: int | None,
    length: int | None,
    seeds: int | None,
    temperature: float | None,
) -> MovieLensOptions:
    plain = MovieLensOptions()
    return MovieLensOptions(
        length=plain.length if length is None else length,
        requests=plain.requests if requests is None else requests,
        seeds=plain.seeds if seeds is None else seeds,
        temperature=plain.temperature if temperature is None else temperature,
        seed=options.seed,
        evaluation=options,
    )


def _simulated(
    options: EvalSlateOptions,
    lists: int | None,
    requests: int | None,
    seeds: int | None,
    temperature: float | None,
) -> SimulatedOptions:
    plain = SimulatedOptions()
    return SimulatedOptions(
        lists=plain.lists if lists is None else lists,
        requests=plain.requests if requests is None else requests,
        seeds=plain.seeds if seeds is None else seeds,
        temperature=plain.temperature if temperature is None else temperature,
        evaluation=options,
    )
