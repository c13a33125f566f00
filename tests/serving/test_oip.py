"""The Open Inference Protocol: a real client of inference servers gets the scores of /v1/rank."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from live_service import Live, live_service
from serving_apps import App, close_scores, events, settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

CANDIDATES = [5, 9, 5, 1 << 40, 77]
INFER = "/v2/models/ranker/infer"


@pytest.fixture(scope="module")
def live(model_folder: Path) -> Iterator[Live]:
    with live_service(settings(model_folder)) as found:
        with httpx.Client(base_url=found.url, timeout=30) as client:
            for number in range(3):
                body = {"user": f"user-{number}", **events(20 + 30 * number, seed=number)}
                assert client.post("/v1/events", json=body).status_code == 200
        yield found


@pytest.fixture
def client(live: Live) -> Iterator[Any]:
    found = triton.InferenceServerClient(live.url.removeprefix("http://"))
    yield found
    found.close()


def ranked(live: Live, user: str, candidates: list[int], **more: Any) -> Any:
    answer = httpx.post(
        f"{live.url}/v1/rank", json={"user": user, "candidates": candidates, **more}, timeout=30
    )
    assert answer.status_code == 200, answer.text
    return np.asarray(answer.json()["scores"], np.float32)


def tensor(name: str, value: Any, *, binary: bool) -> Any:
    kind = "BYTES" if value.dtype == object else "INT64"
    found = triton.InferInput(name, list(value.shape), kind)
    found.set_data_from_numpy(value, binary_data=binary)
    return found


def names(*users: str) -> Any:
    return np.array(list(users), dtype=object)


def test_what_a_client_asks_first(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("ranker")
    server_facts = client.get_server_metadata()
    assert (server_facts["name"], server_facts["extensions"]) == ("relaygr", ["binary_tensor_data"])
    model = client.get_model_metadata("ranker")
    version = model["versions"][0]
    assert {one["name"] for one in model["inputs"]} >= {"user", "candidates", "query_time", "items"}
    assert model["outputs"][0] == {"name": "scores", "datatype": "FP32", "shape": [-1, 2]}
    assert client.is_model_ready("ranker", version)
    assert not client.is_model_ready("other")
    assert not client.is_model_ready("ranker", "1")


@pytest.mark.parametrize("raw_in", [False, True])
@pytest.mark.parametrize("raw_out", [False, True])
def test_one_user(live: Live, client: Any, raw_in: bool, raw_out: bool) -> None:
    inputs = [
        tensor("user", names("user-1"), binary=raw_in),
        tensor("candidates", np.array(CANDIDATES), binary=raw_in),
        tensor("query_time", np.array([1_800_000_000]), binary=raw_in),
    ]
    outputs = [triton.InferRequestedOutput(name, binary_data=raw_out) for name in ("scores", "path")]
    answer = client.infer("ranker", inputs, request_id="q1", outputs=outputs)
    close_scores(answer.as_numpy("scores"), ranked(live, "user-1", CANDIDATES, query_time=1_800_000_000))
    assert answer.as_numpy("scores").dtype == np.float32
    (path,) = answer.as_numpy("path").tolist()
    assert (path.decode() if raw_out else path) in ("full", "hit")
    assert answer.get_response()["id"] == "q1"


@pytest.mark.parametrize("column", [False, True])
def test_a_batch_of_users(live: Live, client: Any, column: bool) -> None:
    users = names("user-0", "user-1", "user-2")
    counts = np.array([5, 2, 0])
    inputs = [
        tensor("user", users.reshape(3, 1) if column else users, binary=True),
        tensor("candidates", np.tile(np.array(CANDIDATES), (3, 1)), binary=True),
        tensor("candidate_counts", counts.reshape(3, 1) if column else counts, binary=True),
    ]
    scores = client.infer("ranker", inputs).as_numpy("scores")
    assert scores.shape == (3, 5, 2)
    for row, count in enumerate(counts):
        if count:
            close_scores(scores[row, :count], ranked(live, f"user-{row}", CANDIDATES[:count]))
        assert not scores[row, count:].any()


def test_an_inline_history_and_probabilities(live: Live, client: Any) -> None:
    columns = events(40, seed=9)
    inputs = [tensor(name, np.array(values), binary=True) for name, values in columns.items()]
    inputs += [
        tensor("user", names("inline"), binary=False),
        tensor("candidates", np.array(CANDIDATES), binary=False),
    ]
    answer = client.infer("ranker", inputs, parameters={"output": "probabilities"}, timeout=30_000_000)
    wanted = ranked(live, "inline", CANDIDATES, history=columns, output="probabilities")
    close_scores(answer.as_numpy("scores"), wanted)


def test_errors_reach_the_client(client: Any) -> None:
    good = [
        tensor("user", names("user-1"), binary=True),
        tensor("candidates", np.array(CANDIDATES), binary=True),
    ]
    with pytest.raises(InferenceServerException, match="unknown model 'other'"):
        client.infer("other", good)
    with pytest.raises(InferenceServerException, match="has no version '1'"):
        client.infer("ranker", good, model_version="1")
    with pytest.raises(InferenceServerException, match="candidates is missing"):
        client.infer("ranker", good[:1])
    with pytest.raises(InferenceServerException, match="'logprobs' is not one of scores, path"):
        client.infer("ranker", good, outputs=[triton.InferRequestedOutput("logprobs")])
    assert client.infer("ranker", good).as_numpy("scores").shape == (5, 2)


USER = {"name": "user", "shape": [1], "datatype": "BYTES", "data": ["u"]}
ONE = {"name": "candidates", "shape": [2], "datatype": "INT64", "data": [1, 2]}
TWO = {"name": "candidates", "shape": [2, 2], "datatype": "INT64", "data": [[1, 2], [3, 4]]}


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([USER], "candidates is missing"),
        ([ONE], "user is missing"),
        ([USER, USER, ONE], "'user' is there twice"),
        ([USER, ONE, {**ONE, "name": "extra"}], "'extra' is not one of"),
        ([USER, {**ONE, "datatype": "FP32"}], "datatype 'FP32' is not INT64 or BYTES"),
        ([{**USER, "datatype": "INT64", "data": [1]}, ONE], "must be BYTES"),
        ([USER, {**ONE, "datatype": "BYTES", "data": ["a", "b"]}], "must be INT64"),
        ([USER, {**ONE, "shape": [3]}], "2 elements are not of shape [3]"),
        ([USER, {**ONE, "shape": [1, 1, 2]}], "shape"),
        ([USER, {**ONE, "shape": [-2]}], "shape"),
        ([USER, {**ONE, "shape": [2**31 - 1, 2**31 - 1]}], "2 elements are not of shape"),
        ([USER, {**ONE, "data": [1, 2**63]}], "Expected `int` <= 9223372036854775807"),
        ([USER, {**ONE, "data": [1.5, 2]}], "Expected `int`, got `float`"),
        ([USER, {**ONE, "data": "12"}], "Expected `array`, got `str`"),
        ([USER, {"name": "candidates", "shape": [2], "datatype": "INT64"}], "has neither data nor"),
        ([USER, {**ONE, "parameters": {"binary_data_size": 8}}], "outside [0, 0]"),
        ([USER, TWO], "shape [1] is not [2]"),
        ([{**USER, "shape": [2], "data": ["a", "b"]}, {**TWO, "data": [[1, 2], [3]]}], "not of shape [2, 2]"),
        ([{**USER, "shape": [0], "data": []}, {**TWO, "shape": [0, 2], "data": []}], "outside [1, 64]"),
        ([USER, ONE, {**ONE, "name": "candidate_counts", "shape": [1], "data": [3]}], "outside [0, 2]"),
        (
            [USER, ONE, {**ONE, "name": "query_time", "shape": [3], "data": [1, 2, 3]}],
            "is neither [1] nor one a candidate",
        ),
        ([USER, ONE, {**ONE, "name": "items"}], "timestamps is missing"),
    ],
)
def test_wrong_tensors(app: App, inputs: list[dict[str, Any]], words: str) -> None:
    answer = app.call("POST", INFER, {"inputs": inputs})
    assert answer.status_code == 400, answer.text
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"priority": 3}, "'priority' is not one of"),
        ({"timeout": 0}, "must be microseconds above 0"),
        ({"timeout": True}, "must be microseconds above 0"),
        ({"output": "softmax"}, "is not 'logits' or 'probabilities'"),
    ],
)
def test_wrong_parameters(app: App, parameters: dict[str, Any], words: str) -> None:
    answer = app.call("POST", INFER, {"inputs": [USER, ONE], "parameters": parameters})
    assert (answer.status_code, words in answer.json()["error"]) == (400, True), answer.text


def raw(name: str, kind: str, shape: list[int], size: int) -> bytes:
    template = '{"name":"%s","shape":%s,"datatype":"%s","parameters":{"binary_data_size":%d}}'
    return (template % (name, shape, kind, size)).encode()


@pytest.mark.parametrize(
    ("head_length", "size", "tail", "words"),
    [
        (None, 5, struct.pack("<I", 1) + b"u", "the body is not JSON"),
        ("x", 5, b"", "outside"),
        ("-1", 5, b"", "outside"),
        ("9" * 20, 5, b"", "outside"),
        ("99999", 5, b"", "outside"),
        (0, 5, struct.pack("<I", 1) + b"u", "binary_data_size 5 is outside [0, 0]"),
        (0, 5, struct.pack("<I", 1) + b"u" + b"more", "4 bytes belong to no tensor"),
        (0, 3, b"abc", "element 0 ends behind the end"),
        (0, 5, struct.pack("<I", 9) + b"u", "element 0 ends behind the end"),
        (0, 5, struct.pack("<I", 1) + b"\xff", "element 0 is not UTF-8"),
        (0, 0, b"", "0 elements are not of shape [1]"),
    ],
)
def test_wrong_raw_bytes(app: App, head_length: str | int | None, size: int, tail: bytes, words: str) -> None:
    candidates = b'{"name":"candidates","shape":[1],"datatype":"INT64","data":[1]}'
    head = b'{"inputs":[' + raw("user", "BYTES", [1], size) + b"," + candidates + b"]}"
    body = head + tail
    if words.startswith("binary_data_size"):
        body = head
    headers = {"content-type": "application/octet-stream"}
    if head_length is not None:
        headers["inference-header-content-length"] = str(head_length or len(head))
    answer = app.call("POST", INFER, content=body, headers=headers)
    assert (answer.status_code, words in answer.json()["error"]) == (400, True), answer.text


def test_one_bad_row_is_the_answer_and_leaves_nothing_waiting(app: App) -> None:
    users = {**USER, "shape": [2], "data": ["good", ""]}
    answer = app.call("POST", INFER, {"inputs": [users, TWO]})
    assert (answer.status_code, answer.json()) == (400, {"error": "user: must not be empty"})
    assert app.service.admissions.in_progress == 0
    assert not app.service._ranking


@pytest.mark.parametrize("path", ["/v2/nothing", "/v2/models/other", "/v2/models/ranker/versions/1"])
def test_what_is_not_there(app: App, path: str) -> None:
    answer = app.call("GET", path)
    assert (answer.status_code, list(answer.json())) == (404, ["error"])
