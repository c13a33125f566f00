"""Every series of generation that the documentation lists is there, says what it should, and moves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from generation_apps import ITEMS, HeldRounds, generating, generating_by_states, save_catalogue
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from serving_apps import App, error_of, running

from patience import PATIENCE_S, await_true
from relaygr.engine.generation.generator import Generator
from relaygr.serving.generation.desk import GenerateDesk
from relaygr.serving.generation.wire import GenerateBody
from relaygr.serving.waiting import ClientGoneError

DOCS = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
ROW = re.compile(r"^\|(?P<names> `[^|]+` )\|(?P<kinds>[^|]+)\|(?P<labels>[^|]*)\|")
OURS = re.compile(r"relaygr_(generate|catalog)_")


@dataclass(frozen=True, slots=True)
class Listed:
    """A series of the documentation: its kind, and the labels it may have beside the model."""

    kind: str
    labels: frozenset[str]


def listed() -> dict[str, Listed]:
    """By name, without the prefix that all have."""
    found: dict[str, Listed] = {}
    for line in DOCS.read_text().splitlines():
        row = ROW.match(line)
        if row is None:
            continue
        names = re.findall(r"`([a-z_]+)`", row["names"])
        if not all(name.startswith(("generate_", "catalog_")) for name in names):
            continue
        kinds = [kind.strip() for kind in row["kinds"].split(",")]
        labels = frozenset(re.findall(r"[a-z_]+", row["labels"]))
        for place, name in enumerate(names):
            found[name] = Listed(kinds[min(place, len(kinds) - 1)], labels)
    return found


LISTED = listed()


class Scrape:
    """What `/metrics` said at one moment of generation and its catalogues."""

    def __init__(self, app: App) -> None:
        text = app.call("GET", "/metrics").text
        self.families: list[Metric] = [
            family for family in text_string_to_metric_families(text) if OURS.match(family.name)
        ]

    def value(self, name: str, **labels: str) -> float:
        """Of all samples with these labels together; of a histogram, how often something was observed."""
        name = f"relaygr_{name}"
        return sum(
            sample.value
            for family in self.families
            for sample in family.samples
            if sample.name in (name, f"{name}_count") and labels.items() <= sample.labels.items()
        )


@dataclass(slots=True)
class Day:
    """An application to which everything has happened, and scrapes of before, the middle and after."""

    app: App
    before: Scrape
    middle: Scrape
    after: Scrape

    @property
    def model(self) -> str:
        return desk_of(self.app).generator.model_fp.hex()[:12]


def of_states(name: str) -> bool:
    """Whether it says something of decoders with linear layers only."""
    return name.removeprefix("relaygr_").startswith(("generate_state_", "generate_linear_"))


def desk_of(app: App) -> GenerateDesk:
    assert app.service.generation is not None
    return app.service.generation


def answered(app: App) -> None:
    """With and without a cached prompt, with unknown items, with fewer rows than asked for."""
    known = list(range(1, 41))
    app.post("/v1/events", {"user": "ann", "items": known, "timestamps": known})
    for _ in range(2):
        app.post("/v1/generate", {"user": "ann", "beam_width": 6})
    app.post("/v1/generate", {"history": [1, ITEMS + 5], "beam_width": 4, "allow": [9]})
    app.post("/v1/events", {"user": "bob", "items": known, "timestamps": known})
    app.post("/v1/prefix", {"user": "bob", "generate": True})
    await_true(lambda: Scrape(app).value("generate_encoded_total") == 1)


def lost(app: App, patch: pytest.MonkeyPatch) -> None:
    """Refused, late, left behind, broken."""
    error_of(app.call("POST", "/v1/generate", {"history": [1], "beam_width": 5000}), 422, "too_wide")
    with HeldRounds(desk_of(app).generator):
        late = app.call("POST", "/v1/generate", {"history": [1], "deadline_ms": 100})
    error_of(late, 504, "deadline")

    async def gone() -> None:
        """The client is not there any more."""

    with HeldRounds(desk_of(app).generator), pytest.raises(ClientGoneError):
        app.do(desk_of(app).generate("default", GenerateBody(history=[1]), None, None, 1000.0, "r", gone))

    def broken(*_: object) -> Any:
        raise RuntimeError("broken")

    with patch.context() as patched:
        patched.setattr(Generator, "round", broken)
        error_of(app.call("POST", "/v1/generate", {"history": [1]}), 500, "internal")


def crowded(app: App) -> Scrape:
    """While one runs, and another and a prompt wait."""
    scheduler = desk_of(app).scheduler

    def ask() -> httpx.Response:
        return app.call("POST", "/v1/generate", {"user": "ann", "beam_width": 6})

    with ThreadPoolExecutor(2) as callers, HeldRounds(desk_of(app).generator) as rounds:
        first = callers.submit(ask)
        rounds.await_round()
        second = callers.submit(ask)
        await_true(lambda: scheduler.load().waiting == 1)
        app.post("/v1/prefix", {"user": "ann", "generate": True})
        await_true(lambda: scheduler.load().prompts == 1)
        seen = Scrape(app)
        rounds.release()
        for caller in (first, second):
            assert caller.result(PATIENCE_S).status_code == 200
    return seen


def catalogued(app: App, folder: Path) -> None:
    """Another catalogue, one that is none, and an item that is withdrawn."""
    save_catalogue(folder / "second", seed=1)
    app.post("/v1/catalogues/load", {"path": str(folder / "second")})
    error_of(app.call("POST", "/v1/catalogues/load", {"path": str(folder / "none")}), 422, "catalogue")
    app.post("/v1/catalogues/withdraw", {"items": [1]})


def lived(app: App) -> Scrape:
    """More users than there is memory for, of whom some come again; what it is while one of them runs."""
    for user in range(8):
        app.post("/v1/events", {"user": f"u{user}", "items": list(range(1, 41)), "timestamps": [7] * 40})
        app.post("/v1/generate", {"user": f"u{user}"})
    app.post("/v1/generate", {"user": "u7"})
    app.post("/v1/events", {"user": "u7", "items": [3], "timestamps": [8]})
    app.post("/v1/generate", {"user": "u7"})
    with ThreadPoolExecutor(1) as callers, HeldRounds(desk_of(app).generator) as rounds:
        last = callers.submit(lambda: app.call("POST", "/v1/generate", {"user": "u6"}))
        rounds.await_round()
        seen = Scrape(app)
        rounds.release()
        assert last.result(PATIENCE_S).status_code == 200
    return seen


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    """The same of a decoder with linear layers."""
    with running(generating_by_states(tmp_path_factory.mktemp("states"), state_share=0.004)) as app:
        before = Scrape(app)
        middle = lived(app)
        load = desk_of(app).scheduler.load
        await_true(lambda: load().running == load().waiting == 0)
        yield Day(app, before, middle, Scrape(app))


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    folder = tmp_path_factory.mktemp("counted")
    with running(generating(folder)) as app, pytest.MonkeyPatch.context() as patch:
        before = Scrape(app)
        answered(app)
        lost(app, patch)
        middle = crowded(app)
        catalogued(app, folder)
        load = desk_of(app).scheduler.load
        await_true(lambda: load().running == load().waiting == load().prompts == 0)
        await_true(lambda: desk_of(app).generator.catalogues.status().pins == 0)
        yield Day(app, before, middle, Scrape(app))


def test_what_is_listed_is_what_there_is(day: Day, states: Day) -> None:
    kinds = {
        family.name.removeprefix("relaygr_") + ("_total" if family.type == "counter" else ""): family.type
        for family in day.after.families
    }
    assert kinds == {name: one.kind for name, one in LISTED.items()}
    told = [(day, family) for family in day.after.families if not of_states(family.name)]
    told += [(states, family) for family in states.after.families if of_states(family.name)]
    assert {family.name for _, family in told} == {family.name for family in day.after.families}
    for source, family in told:
        name = family.name.removeprefix("relaygr_") + ("_total" if family.type == "counter" else "")
        assert family.samples, f"{name} has no sample"
        assert family.documentation
        for sample in family.samples:
            labels = set(sample.labels) - {"le"}
            assert sample.labels["model"] == source.model
            assert labels - {"model"} <= LISTED[name].labels, f"{name} is listed without some of {labels}"


@pytest.mark.parametrize("name", sorted(name for name, one in LISTED.items() if one.kind != "gauge"))
def test_what_happens_is_counted(day: Day, states: Day, name: str) -> None:
    source = states if of_states(name) else day
    assert source.after.value(name) > source.before.value(name)


COUNTED = {
    ("generate_requests_total",): 5,
    ("generate_encoded_total",): 2,
    ("generate_rejected_total", "reason", "too_wide"): 1,
    ("generate_failed_total", "code", "internal"): 1,
    ("generate_cancelled_total",): 1,
    ("generate_deadline_missed_total",): 1,
    ("generate_underflow_total", "reason", "catalog_exhausted"): 1,
    ("generate_unknown_items_total",): 1,
    ("generate_prompt_tokens_total", "source", "computed"): 120 + 3,
    ("generate_prompt_tokens_total", "source", "cached"): 3 * 120,
    ("generate_seconds",): 5,
    ("generate_queue_seconds",): 5,
    ("generate_prefill_seconds",): 5,
    ("generate_prompt_length_tokens",): 5,
    ("generate_unique_sids",): 5,
    ("generate_candidates",): 5,
    ("generate_kv_bytes", "part", "prompt"): 5,
    ("generate_kv_bytes", "part", "beams"): 5,
    ("catalog_loads_total",): 1,
    ("catalog_load_failures_total",): 1,
}


@pytest.mark.parametrize("series", COUNTED, ids=" ".join)
def test_what_happened_is_counted_once(day: Day, series: tuple[str, ...]) -> None:
    name, *label = series
    labels = dict([label]) if label else {}
    assert day.after.value(name, **labels) - day.before.value(name, **labels) == COUNTED[series]


def test_gauges_rise_and_fall(day: Day, states: Day) -> None:
    """Those of the documentation, all of them."""
    before, middle, after = day.before, day.middle, day.after

    def seen(name: str, **labels: str) -> tuple[float, ...]:
        source = states if of_states(name) else day
        return tuple(one.value(name, **labels) for one in (source.before, source.middle, source.after))

    of_one = desk_of(states.app).generator.memory.state_bytes

    checked = {
        "generate_running": seen("generate_running") == (0, 1, 0),
        "generate_queue_depth": all(
            seen("generate_queue_depth", **{"class": name}) == (0, 1, 0) for name in ("generate", "encode")
        ),
        "generate_beam_bytes": seen("generate_beam_bytes", **{"class": "used"})[::2] == (0, 0)
        and middle.value("generate_beam_bytes", **{"class": "used"}) > 0
        and len(set(seen("generate_beam_bytes", **{"class": "limit"}))) == 1,
        "generate_prompt_bytes": seen("generate_prompt_bytes", **{"class": "pinned"})[::2] == (0, 0)
        and middle.value("generate_prompt_bytes", **{"class": "pinned"}) > 0
        and after.value("generate_prompt_bytes", **{"class": "evictable"}) > 0
        and len(set(seen("generate_prompt_bytes"))) == 1,  # all of it, whatever it is used for
        "generate_state_bytes": seen("generate_state_bytes", **{"class": "working"}) == (0, of_one, 0)
        and min(seen("generate_state_bytes", **{"class": "kept"})) > 0
        and len(set(seen("generate_state_bytes"))) == 1,
        "generate_state_snapshots": 0
        < min(seen("generate_state_snapshots"))
        < seen("generate_state_snapshots")[2],
        "catalog_info": seen("catalog_info") == (1, 1, 1) and versions(before) != versions(after),
        "catalog_age_seconds": before.value("catalog_age_seconds") < after.value("catalog_age_seconds"),
        "catalog_pins": seen("catalog_pins") == (0, 2, 0),
        "catalog_withdrawn_items": seen("catalog_withdrawn_items") == (0, 0, 1),
    }
    assert [name for name, right in checked.items() if not right] == []
    assert set(checked) == {name for name, one in LISTED.items() if one.kind == "gauge"}


def versions(scrape: Scrape) -> list[str]:
    [info] = [family for family in scrape.families if family.name == "relaygr_catalog_info"]
    return [sample.labels["version"] for sample in info.samples]
