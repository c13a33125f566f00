"""What HTTP adds to a ranking: the same request to the server and to an engine in this process, in turn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from http.client import HTTPConnection
from typing import Self

import msgspec
import numpy as np

from relaygr.bench.serve_process import HOST
from relaygr.bench.timing import Timing, Variant, round_robin
from relaygr.core.errors import BackendError
from relaygr.engine import Engine, RankRequest, UserHistory

_TIMEOUT_S = 30.0
_JSON = {"content-type": "application/json"}
# The largest difference of a logit between the two processes.
TOLERANCE = {"fp32": 1e-5, "bf16": 0.05}


class RankBody(msgspec.Struct, frozen=True):
    user: str
    candidates: list[int]


class Ranked(msgspec.Struct, frozen=True):
    """What is read of an answer."""

    path: str
    scores: list[list[float]]
    model: str


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of a ranking whose prefix is cached, one at a time, both ways in turn.

    Attributes:
        overhead_p50_ms: median of the differences of the pairs.
        http_p50_ms, engine_p50_ms: medians over the connection and in this process.
        largest_difference: of a logit between the two.
    """

    overhead_p50_ms: float
    http_p50_ms: float
    engine_p50_ms: float
    largest_difference: float
    samples: int


class Caller:
    """One kept connection, without a client library whose own time would count as the server's."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection(HOST, port, timeout=_TIMEOUT_S)

    def post(self, path: str, body: bytes) -> bytes:
        """The answer's body; BackendError if it is not good."""
        self._connection.request("POST", path, body, _JSON)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise BackendError(f"{path}: {answer.status} {data[:300].decode(errors='replace')}")
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def measure_overhead(
    port: int, engine: Engine, user: UserHistory, candidates: Sequence[int], samples: int
) -> Overhead:
    """Time both ways of ranking `user`, whose events the server has stored.

    Raises:
        BackendError: the server fails, serves another model, scores otherwise or does not hit its cache.
    """
    request = RankRequest(user, list(candidates))
    body = msgspec.json.encode(RankBody(user.user, list(candidates)))
    with Caller(port) as caller:
        difference = _check(caller, engine, request, body)
        http, alone = round_robin(
            [
                Variant("http", lambda: caller.post("/v1/rank", body)),
                Variant("engine", lambda: engine.rank(RankRequest(user, candidates))),
            ],
            samples,
        )
    return Overhead(
        overhead_p50_ms=_paired(http, alone),
        http_p50_ms=http.median_ms,
        engine_p50_ms=alone.median_ms,
        largest_difference=difference,
        samples=samples,
    )


def _check(caller: Caller, engine: Engine, request: RankRequest, body: bytes) -> float:
    """Bring the prefix into both caches; the largest difference of a logit."""
    for _ in range(3):
        wanted = engine.rank(request)
        got = msgspec.json.decode(caller.post("/v1/rank", body), type=Ranked)
    if got.model != engine.model_fp.hex():
        raise BackendError(f"the server serves {got.model}, not {engine.model_fp.hex()}")
    if (got.path, wanted.served.path) != ("hit", "hit"):
        raise BackendError(f"the prefix is not cached: {got.path} over HTTP, {wanted.served.path} alone")
    difference = float(np.abs(np.asarray(got.scores, np.float32) - wanted.logits).max())
    if difference > (limit := TOLERANCE[engine.choice.dtype_name]):
        raise BackendError(f"a score over HTTP differs by {difference:.2g}, limit {limit:g}")
    return difference


def _paired(http: Timing, alone: Timing) -> float:
    return statistics.median(a - b for a, b in zip(http.times_ms, alone.times_ms, strict=True))
