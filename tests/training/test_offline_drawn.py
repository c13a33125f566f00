"""Off-policy estimates on lists that a server drew: within its rules and trust region, by its own word."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from relaygr.listwise.explore import Explorer
from relaygr.listwise.items import ItemTable, read_items
from relaygr.listwise.lists import ListModel
from relaygr.listwise.masks import NoRules, Rules
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.rules.document import parse_rules
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.slate_log import Drawn, SlateLog, read_records, record_of
from relaygr.listwise.slates import Slates
from relaygr.listwise.step import StepModel
from relaygr.listwise.trust import Trust
from relaygr.training.slate.offline.drawn import drawn_alike
from relaygr.training.slate.offline.logged import LoggedOptions, logged_report
from relaygr.training.slate.offline.protocol import EvalSlateOptions
from relaygr.training.slate.offline.report import SlateReport
from relaygr.training.slate.read_log import read_log
from relaygr.training.slate.sampling import watch_lists
from relaygr.training.slate.shapes import default_config
from relaygr.training.slate.simulated import ITEMS, VALUE_FILE, write_world
from relaygr.training.slate.world import HEADS, VALUE, World

WORLD = World()
DRAWN = Drawn(temperature=0.3, top=20, seed=1)
RULES = RuleSet(
    parse_rules(
        {
            "id": "feed",
            "rules": [
                {"kind": "gap", "name": "authors", "attribute": "author", "distance": 3},
                {"kind": "cap", "name": "topics", "attribute": "topic", "most": 2, "window": 4, "price": 0.2},
            ],
        }
    )
)


def write_drawn(folder: Path, lists: int, rules: Rules, share: float = 1.0, drawn: Drawn = DRAWN) -> int:
    """Serve lists of a world, watch them and log them as a server does; how many were drawn."""
    write_world(folder, WORLD, 1, 0)  # items and value function
    model = ListModel(step_model(), VALUE)
    explorer = Explorer(share=share, temperature=drawn.temperature, seed=drawn.seed)
    slates = Slates(VALUE, model, trust=Trust(drawn.top), explorer=explorer)
    requests = WORLD.requests(lists, 5)
    asks = [
        SlateAsk(request_id=f"r{n}", length=10, rules=rules, explore=f"{n}", allow_short=False)
        for n in range(lists)
    ]
    made = [slates.serve(ask, requests.pool(n)) for n, ask in enumerate(asks)]
    seen = watch_lists(requests, np.stack([one.picks for one in made]), 3).logs
    log = SlateLog(folder / "drawn", HEADS)
    log.write(
        [
            msgspec.structs.replace(
                record_of(str(requests.users[n]), asks[n], requests.pool(n), one),
                drawn=drawn if one.explored else None,
                consumed=int(seen.consumed[n]),
                labels=tuple((label,) for label in seen.labels[n, : seen.consumed[n], 0].tolist()),
            )
            for n, one in enumerate(made)
        ]
    )
    return sum(one.explored for one in made)


def evaluated(folder: Path, rules: Rules | None, **options: object) -> SlateReport:
    step_model().save(folder / "step")
    evaluation = EvalSlateOptions(
        methods=("pointwise", "default"), strengths=(2.0,), rules=rules, unrecorded=True, **options
    )  # type: ignore[arg-type]
    return logged_report(
        folder / "drawn",
        folder / VALUE_FILE,
        [folder / "step"],
        table=table(folder),
        options=LoggedOptions(requests=20, evaluation=evaluation),
    )


def step_model() -> StepModel:
    """One that prefers some contexts."""
    zero, random = StepModel.zero(default_config(HEADS, ("topic", "author"))), np.random.default_rng(1)
    tensors = {
        name: values + random.standard_normal(values.shape).astype(np.float32)
        for name, values in zero.tensors.items()
        if name.startswith("groups.")
    }
    return StepModel(zero.config, {**zero.tensors, **tensors})


def table(folder: Path) -> ItemTable:
    return read_items(folder / ITEMS)


@pytest.mark.parametrize("rules", [None, RULES])
def test_servers_lists_are_estimated_by_the_policy_that_drew_them(
    tmp_path: Path, rules: RuleSet | None
) -> None:
    """Another policy's mean weight is 1 within five standard errors: propensities and support are right."""
    count = write_drawn(tmp_path, 350, rules or NoRules(), share=0.9)
    report = evaluated(tmp_path, rules)
    notes = " ".join(report.notes)
    assert f"{count:,} of {count:,} logged lists have propensities and labels and were used" in notes
    (gap,) = [note for note in report.notes if "differ from" in note]
    assert float(gap.split("up to ")[1].split(" ")[0]) < 1e-6, gap
    own = [one for one in report.estimates if one.policy == "softmax 0.3" and one.depth == 10]
    assert {round(one.ess) for one in own} == {count}
    (tilted,) = (
        one
        for one in report.estimates
        if "tilted" in one.policy and "ips" in one.estimator and one.depth == 3
    )
    assert tilted.ess < 0.98 * count
    spread = np.sqrt((count / tilted.ess - 1) / count)
    assert abs(tilted.mean_weight - 1) < 5 * spread


def test_what_was_made_otherwise_is_left_out_and_told(tmp_path: Path) -> None:
    first = write_drawn(tmp_path, 60, RULES)
    second = write_drawn(tmp_path, 20, RULES, drawn=Drawn(temperature=0.1, top=30))
    free = write_drawn(tmp_path, 10, NoRules())
    log = read_log(tmp_path / "drawn", table(tmp_path))
    rows = np.arange(len(log.logs))
    alike = drawn_alike(log, rows, VALUE.version, RULES, as_drawn=True)
    assert (len(alike.rows), alike.drawn) == (first, DRAWN)
    assert f"{free} of {first + second + free} explored lists were left out" in alike.notes[0]
    assert f"{second} of {first + second} explored lists were left out" in alike.notes[1]
    assert len(drawn_alike(log, rows, VALUE.version, RULES, as_drawn=False).rows) == first + second
    assert len(drawn_alike(log, rows, VALUE.version, None, as_drawn=True).rows) == free
    assert len(drawn_alike(log, rows, "another@0", RULES, as_drawn=True).rows) == 0


def test_lists_that_these_rules_forbid_are_left_out(tmp_path: Path) -> None:
    """Rules whose version says the same, over items that have changed since."""
    count = write_drawn(tmp_path, 80, NoRules())
    report = evaluated(tmp_path, None, trust=Trust(11))
    assert not any("do not allow" in note for note in report.notes)  # the log's word comes first
    log = read_log(tmp_path / "drawn", table(tmp_path))
    assert all(one.drawn == DRAWN for one in log.origins)
    options = EvalSlateOptions(methods=("pointwise",), trust=Trust(11), unrecorded=True)
    found = logged_report(
        tmp_path / "drawn",
        tmp_path / VALUE_FILE,
        [tmp_path / "step"],
        table=table(tmp_path),
        options=LoggedOptions(requests=20, as_drawn=False, evaluation=options),
    )
    (lost,) = [note for note in found.notes if "do not allow" in note]
    assert 0 < int(lost.split()[0]) <= count


def test_tenants_users_are_not_one_user(tmp_path: Path) -> None:
    log = SlateLog(tmp_path, HEADS)
    write_drawn(tmp_path / "world", 1, NoRules())
    (record,) = read_records(tmp_path / "world" / "drawn")
    log.write([record, msgspec.structs.replace(record, tenant="shop"), record])
    users = read_log(tmp_path).logs.users.tolist()
    assert users[0] == users[2] != users[1]
