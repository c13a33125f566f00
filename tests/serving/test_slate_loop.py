"""From lists that a server shows to the next step model: served, watched, logged, trained on, evaluated.

Users are those of a world of known truth; the server is a process of its own, which is also killed.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec.structs import replace
from serving_apps import TINY, save_model, server

from patience import await_true
from relaygr.cli.main import main
from relaygr.listwise.folds import Part, Split
from relaygr.listwise.log_files import log_files
from relaygr.listwise.slate_log import SlateRecord, read_records
from relaygr.listwise.step import StepModel
from relaygr.training.slate.read_log import user_number
from relaygr.training.slate.sampling import watch_lists
from relaygr.training.slate.shapes import default_config
from relaygr.training.slate.simulated import ITEMS, VALUE_FILE, write_world
from relaygr.training.slate.world import HEADS, Requests, World, WorldConfig

WORLD = World(WorldConfig(items=400, topics=20, candidates=40))
PEOPLE = 300  # the last ones of whom nothing is heard
SILENT = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server needs; its step model changes nothing yet."""
    made = tmp_path_factory.mktemp("loop")
    save_model(made / "ranker", config=replace(TINY, action_bits=("watch", "like"), tasks=("watch",)))
    write_world(made, WORLD, 1, 0)
    StepModel.zero(default_config(HEADS, ("topic", "author"))).save(made / "step")
    return made


def sets(folder: Path) -> list[str]:
    return [
        f"slate.value={folder / VALUE_FILE}",
        f"slate.items={folder / ITEMS}",
        f"slate.step={folder / 'step'}",
        f"slate.log={folder / 'served'}",
        "slate.explore_share=0.2",
        "slate.explore_temperature=0.3",
        "slate.budget_ms=0",
    ]


def asked(client: httpx.Client, requests: Requests, n: int) -> dict[str, Any]:
    body = {"user": f"user-{requests.users[n]}", "candidates": requests.items[n].tolist(), "explain": False}
    answer = client.post("/v1/slate", json=body, headers={"x-request-id": f"loop-{requests.users[n]}"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["fallback_reason"] is None
    return found


def told(client: httpx.Client, outcomes: Sequence[dict[str, Any]]) -> None:
    answer = client.post("/v1/slate/outcomes", json={"outcomes": outcomes})
    assert answer.json() == {"matched": len(outcomes), "unknown": 0}


def written(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("relaygr_slate_log_lists") and '"written"' in line]
    return sum(float(line.split(" ")[1]) for line in found)


@pytest.fixture(scope="module")
def played(folder: Path) -> list[dict[str, Any]]:
    """All answers; of all but the last users it was told what they watched."""
    requests = WORLD.requests(PEOPLE, 1)
    with server(folder / "first", folder / "ranker", *sets(folder)) as running, running.client() as client:
        answers = [asked(client, requests, n) for n in range(PEOPLE)]
        lists = np.array([[pick["candidate"] for pick in one["picks"]] for one in answers], dtype=np.int32)
        seen = watch_lists(requests, lists, 1).logs
        outcomes = []
        for n in range(PEOPLE - SILENT):
            watched = seen.labels[n, : seen.consumed[n], 0].tolist()
            outcomes.append({"request_id": f"loop-{requests.users[n]}", "labels": {"watch": watched}})
        for first in range(0, len(outcomes), 100):
            told(client, outcomes[first : first + 100])
        assert running.end() == 0
    return answers


def records(folder: Path) -> list[SlateRecord]:
    return list(read_records(folder / "served"))


def test_everything_that_was_settled_is_logged(folder: Path, played: list[dict[str, Any]]) -> None:
    found = {one.request: one for one in records(folder)}
    assert len(found) == PEOPLE - SILENT
    drawn = [one for one in played[:-SILENT] if one.get("explored")]
    assert abs(len(drawn) - 56) < 4 * np.sqrt(56 * 0.8)
    for answer in played[:-SILENT]:
        record = found[answer["request_id"]]
        assert list(record.items) == answer["items"]
        explored = bool(answer.get("explored"))
        assert (len(record.log_propensity) == 10) == (record.drawn is not None) == explored
        if explored:
            assert sum(record.log_propensity) == pytest.approx(answer["log_propensity"])


def test_what_was_logged_is_trained_on_and_evaluated(
    folder: Path, played: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--logs", folder / "served", "--items", folder / ITEMS, "--value", folder / VALUE_FILE)
    run("train", "slate", *common, "--out", folder / "next")
    report = json.loads((folder / "next" / "train_report.json").read_text())
    explored = [one for one in records(folder) if one.log_propensity]
    assert report["explored"] == len(explored)
    assert sum(report["lists"].values()) == PEOPLE - SILENT
    consumed = [one.consumed for one in records(folder) if part_of(one) is Part.STEP]
    assert report["rows"] == sum(consumed)
    out = folder / "report.json"
    run("eval", "slate", *common, "--model", folder / "next" / "step", "--requests", 20, "--json", out)
    said = json.loads(out.read_text())
    aside = [one for one in explored if part_of(one) is Part.EVALUATOR]
    notes = " ".join(said["notes"])
    assert f"{len(aside)} of {len(aside)} logged lists have propensities and labels and were used" in notes
    gap = next(note for note in said["notes"] if "differ from softmax 0.3" in note)
    assert float(gap.split("up to ")[1].split(" ")[0]) < 1e-6
    own = [one for one in said["estimates"] if one["policy"] == "softmax 0.3"]
    assert {round(one["ess"]) for one in own} == {len(aside)}
    assert {one["estimator"] for one in own} == {"doubly robust", "cascade ips"}
    assert not any("left out" in each for each in said["cannot"])
    with (
        server(folder / "next-server", folder / "ranker", *next_sets(folder)) as running,
        running.client() as client,
    ):
        answer = asked(client, WORLD.requests(1, 2), 0)
    assert answer["versions"]["step"] == report["versions"]["step"]


def next_sets(folder: Path) -> list[str]:
    step = f"slate.step={folder / 'next' / 'step'}"
    return [step if one.startswith("slate.step=") else one for one in sets(folder)]


def part_of(record: SlateRecord) -> Part:
    users = np.array([user_number(record.user, record.tenant)])
    return list(Part)[int(Split().parts(users)[0])]


def run(*words: object) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert end.value.code in (0, None)


def test_a_killed_server_loses_what_was_not_written(folder: Path, tmp_path: Path) -> None:
    """What a kill leaves of a line is passed over, and the next server goes on in a file of its own."""
    where = [one.replace(str(folder / "served"), str(tmp_path / "log")) for one in sets(folder)]
    requests = WORLD.requests(6, 3)
    with server(tmp_path / "one", folder / "ranker", *where) as running, running.client() as client:
        settle(client, requests, range(3))
        await_true(lambda: written(client) == 3)
        running.end(signal.SIGKILL)
    (file,) = log_files(tmp_path / "log")
    with file.open("ab") as stream:
        stream.write(file.read_bytes()[:200])  # a write that was cut
    assert len(list(read_records(tmp_path / "log"))) == 3
    with server(tmp_path / "two", folder / "ranker", *where) as running, running.client() as client:
        lost = {"outcomes": [{"request_id": f"loop-{requests.users[0]}", "consumed": 1}]}
        assert client.post("/v1/slate/outcomes", json=lost).json() == {"matched": 0, "unknown": 1}
        settle(client, requests, range(3, 6))
        assert running.end() == 0
    assert [one.user for one in read_records(tmp_path / "log")] == [f"user-{user}" for user in requests.users]


def settle(client: httpx.Client, requests: Requests, which: range) -> None:
    for n in which:
        asked(client, requests, n)
        told(client, [{"request_id": f"loop-{requests.users[n]}", "consumed": 2}])
