"""Rules as data: what is read, and what is refused with field, value and limit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from slate_cases import VALUE, list_model, random_pool

from relaygr.core.errors import ConfigError, RequestError
from relaygr.listwise.pool import Head, Pool, Shown
from relaygr.listwise.request import SlateAsk
from relaygr.listwise.rules.document import AnyRule, Gap, Pin, RuleDocument, parse_rules, read_rules
from relaygr.listwise.rules.ruleset import RuleSet
from relaygr.listwise.slates import Slates

DOCS = (Path(__file__).parents[2] / "docs" / "slate-rules.md").read_text()

ALL = {
    "id": "reels-rules-3",
    "lookahead_nodes": 500,
    "rules": [
        {"kind": "gap", "name": "authors", "attribute": "author", "distance": 3},
        {"kind": "cap", "name": "topics", "attribute": "topic", "most": 2, "window": 5, "relax": 25},
        {"kind": "minimum", "name": "news", "attribute": "class", "values": [1], "count": 2, "within": 6},
        {"kind": "maximum", "name": "long", "attribute": "format", "values": [2], "count": 3, "price": 0.5},
        {"kind": "slot", "name": "ads", "attribute": "class", "values": [7], "positions": [3], "every": 8},
        {"kind": "pin", "name": "launch", "item": 12, "position": 0, "relax": "never"},
        {"kind": "pairs", "name": "rivals", "pairs": [[1, 2], [3, 4]]},
        {"kind": "eligible", "name": "safe", "attribute": "flagged", "values": [1], "deny": True},
    ],
}


def rule(kind: str, **fields: Any) -> dict[str, Any]:
    return {"id": "d", "rules": [{"kind": kind, "name": "r", **fields}]}


def test_a_document_is_the_same_from_json_from_a_file_and_from_objects(tmp_path: Path) -> None:
    text = json.dumps(ALL)
    file = tmp_path / "rules.json"
    file.write_text(text)
    assert parse_rules(ALL) == parse_rules(text) == parse_rules(text.encode()) == read_rules(file)
    assert [type(each).__name__ for each in parse_rules(ALL).rules] == [
        "Gap",
        "Cap",
        "Minimum",
        "Maximum",
        "Slot",
        "Pin",
        "Pairs",
        "Eligible",
    ]
    with pytest.raises(ConfigError, match="cannot be read"):
        read_rules(tmp_path / "missing.json")


def test_the_order_of_relaxation_has_defaults_and_can_be_set() -> None:
    by_name = {each.name: getattr(each, "order", None) for each in parse_rules(ALL).rules}
    assert by_name == {
        "authors": 30,
        "topics": 25,
        "news": 10,
        "long": 20,
        "ads": None,
        "launch": None,
        "rivals": None,
        "safe": None,
    }
    assert parse_rules(rule("pin", item=1, position=0)).rules[0].order == 40


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (rule("gap", attribute="author", distance=1), r"^rules\[0\]\.distance: 1 must be in \[2, 1048576\]$"),
        (
            rule("gap", attribute="author", distance="x"),
            r"^rules\[0\]\.distance: 'x': Expected `int`, got `str`$",
        ),
        (rule("gaps", attribute="author"), r"^rules\[0\]\.kind: 'gaps': Invalid value 'gaps'$"),
        (rule("gap", attribute="author"), r"missing required field `distance`"),
        (rule("gap", attribute="author", distance=2, size=3), r"unknown field `size`"),
        (rule("cap", attribute="topic", most=0), r"^rules\[0\]\.most: 0 must be in \[1, 1048576\]$"),
        (rule("cap", attribute="topic", most=1, price=-1), r"^rules\[0\]\.price: -1\.0 must be in \[0, "),
        (
            rule("cap", attribute="topic", most=1, relax=2000),
            r"^rules\[0\]\.relax: 2000 must be in \[0, 1000\]$",
        ),
        (rule("cap", attribute="topic", most=1, values=[-1]), r"^rules\[0\]\.values: -1 stands for no value"),
        (rule("cap", attribute="topic", most=1, values=[1 << 70]), r"rules\[0\]\.values.*"),
        (
            rule("minimum", attribute="class", values=[], count=1),
            r"^rules\[0\]\.values: 0 entries, wanted from 1",
        ),
        (
            rule("minimum", attribute="class", values=[1], count=4, within=3),
            r"^rules\[0\]\.count: 4 must be at most rules\[0\]\.within = 3$",
        ),
        (
            rule("minimum", attribute="class", values=[1], count=4, scope="feed"),
            r"^rules\[0\]\.within: None must be a number",
        ),
        (
            rule("minimum", attribute="class", values=[1], count=4, scope="page"),
            r"^rules\[0\]\.scope: 'page'",
        ),
        (rule("slot", attribute="class", values=[1], positions=[]), r"^rules\[0\]\.positions: 0 entries"),
        (
            rule("slot", attribute="class", values=[1], positions=[1, 5], every=5),
            r"^rules\[0\]\.positions: 5 must be below rules\[0\]\.every = 5$",
        ),
        (rule("slot", attribute="class", values=[1], positions=[0], relax=1), r"unknown field `relax`"),
        (rule("pin", item=3, position=-1), r"^rules\[0\]\.position: -1 must be in \[0, "),
        (rule("pairs", pairs=[[1, 1]]), r"^rules\[0\]\.pairs\[0\]: \[1, 1\] must be two different numbers$"),
        (rule("pairs", pairs=[[1, 2], [1, "a"]]), r"^rules\[0\]\.pairs\[1\]\[1\]: 'a': Expected `int`"),
        (rule("pairs", pairs=[[1, 2]], price=1), r"unknown field `price`"),
        (rule("eligible", attribute="flagged", values=[1], relax=1), r"unknown field `relax`"),
        ({"id": ""}, r"^id: '' must be a name$"),
        ({"id": "d", "lookahead_nodes": -1}, r"^lookahead_nodes: -1 must be in \[0, 10000000\]$"),
        (
            {"id": "d", "rules": [ALL["rules"][0], ALL["rules"][0]]},
            r"^rules\[1\]\.name: 'authors' is rules\[0\] too$",
        ),
        (
            {"id": "d", "rules": [{**ALL["rules"][0], "name": "length"}]},
            r"^rules\[0\]\.name: 'length' must be a word other",
        ),
        (
            {"id": "d", "rules": [{**ALL["rules"][0], "name": f"r{at}"} for at in range(65)]},
            r"65 rules, limit 64",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_rules(document)


def test_what_is_no_document_is_refused() -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        parse_rules(b"{")
    with pytest.raises(ConfigError, match="bytes, limit"):
        parse_rules(b" " * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="Expected `object`"):
        parse_rules(b"[]")


def test_a_request_may_add_rules_which_are_checked_as_well() -> None:
    rules = RuleSet(parse_rules(ALL))
    more = rules.extended([Pin(name="mine", item=5, position=2)])
    assert [each.name for each in more.document.rules][-1] == "mine"
    assert more.version != rules.version
    assert more.version.startswith("reels-rules-3@")
    with pytest.raises(ConfigError, match=r"rules\[8\]\.name: 'authors' is rules\[0\] too"):
        rules.extended([Gap(name="authors", attribute="author", distance=2)])


def test_rules_name_the_attribute_that_is_missing() -> None:
    pool = Pool(
        ids=np.arange(3),
        heads=(Head("like"),),
        outputs=np.zeros((3, 1), dtype=np.float32),
        attributes={"topic": np.zeros(3, dtype=np.int64)},
    )
    gap = RuleSet(RuleDocument(id="d", rules=(Gap(name="r", attribute="author", distance=2),)))
    with pytest.raises(
        RequestError, match=r"^attributes\.author: is missing, and rule 'r' needs it; there are: topic$"
    ):
        gap.open(pool, np.zeros(3), 2)
    topics = RuleSet(RuleDocument(id="d", rules=(Gap(name="r", attribute="topic", distance=2),)))
    with pytest.raises(RequestError, match=r"^shown\.attributes\.topic: is missing, and rule 'r' needs it"):
        topics.open(pool, np.zeros(3), 2, Shown(ids=np.array([9])))


def test_what_the_documentation_shows_runs(tmp_path: Path) -> None:
    blocks = {
        language: re.search(rf"```{language}\n(.*?)```", DOCS, re.DOTALL) for language in ("json", "python")
    }
    assert all(blocks.values())
    file = tmp_path / "rules.json"
    file.write_text(blocks["json"][1])  # type: ignore[index]
    candidates = random_pool(np.random.default_rng(0), 60)
    flags = {
        name: (candidates.ids % 5 == at).astype(np.int64)
        for at, name in enumerate(("flagged", "fresh", "ad"))
    }
    pool = Pool(
        ids=candidates.ids,
        heads=candidates.heads,
        outputs=candidates.outputs,
        attributes={
            **candidates.attributes,
            "author": candidates.ids // 7,
            "topic": candidates.ids % 9,
            **flags,
        },
        vectors=candidates.vectors,
    )
    names = {"path": file, "slates": Slates(VALUE, list_model()), "SlateAsk": SlateAsk, "pool": pool}
    exec(blocks["python"][1], names)  # type: ignore[index]
    result = names["result"]
    assert len(result.items) == 10
    assert result.fallback_reason is None
    assert result.relaxations == ()
    assert names["pinned"].version != names["rules"].version


def test_every_kind_and_field_is_documented() -> None:
    for kind in get_args(AnyRule):
        assert f"| `{kind.__struct_config__.tag}` |" in DOCS
        for field in kind.__struct_fields__:
            assert f"`{field}`" in DOCS, field
        order = getattr(kind, "ORDER", None)
        row = next(
            line for line in DOCS.splitlines() if line.startswith(f"| `{kind.__struct_config__.tag}` |")
        )
        assert row.endswith(f"| {order or 'never'} |")


def test_names_are_short_and_a_message_repeats_their_beginning_only() -> None:
    for kind, more in (("gap", {"distance": 3}), ("eligible", {"values": [1]})):
        for field in ("name", "attribute"):
            whole = rule(kind, attribute="a", **more)
            whole["rules"][0][field] = "x" * 100
            parse_rules(whole)
            whole["rules"][0][field] = "x" * 200_000
            with pytest.raises(ConfigError, match=rf"^rules\[0\]\.{field}: 'xx.* limit 100") as caught:
                parse_rules(whole)
            assert len(str(caught.value)) < 300
    with pytest.raises(ConfigError, match=r"^id: .* limit 100"):
        parse_rules({"id": "x" * 101})


def test_what_a_request_lacks_is_told_in_few_words() -> None:
    pool = Pool(
        ids=np.arange(3),
        heads=(Head("like"),),
        outputs=np.zeros((3, 1), dtype=np.float32),
        attributes={f"{at}" + "x" * 60: np.zeros(3, dtype=np.int64) for at in range(1000)},
    )
    rules = RuleSet(parse_rules(rule("gap", attribute="nope", distance=2)))
    with pytest.raises(RequestError, match="rule 'r' needs it") as caught:
        rules.open(pool, np.zeros(3), 2)
    assert len(str(caught.value)) < 500


def test_all_pairs_together_are_bounded() -> None:
    pairs = [[at, at + 1] for at in range(10_000)]
    rules = [{"kind": "pairs", "name": f"p{at}", "pairs": pairs} for at in range(6)]
    assert (
        len(RuleDocument(id="five").extended(parse_rules({"id": "a", "rules": rules[:5]}).rules).rules) == 5
    )
    with pytest.raises(ConfigError, match=r"^rules: 60000 pairs in all, limit 50000$"):
        parse_rules({"id": "six", "rules": rules})
