"""The Open Inference Protocol, version 2, over HTTP: the same ranking for clients of inference servers.

The model's version is the fingerprint of its weights. Errors have the protocol's form.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
import numpy as np

from relaygr import __version__
from relaygr.core.errors import NotReadyError, RequestError
from relaygr.engine import RankResult
from relaygr.engine.jobs import RankJob
from relaygr.serving.answers import Scores, path_of, scores
from relaygr.serving.endpoint import Call, Operation
from relaygr.serving.errors import HttpError
from relaygr.serving.exchange import JSON, Reply, decode
from relaygr.serving.oip_errors import oip_error
from relaygr.serving.oip_rows import INPUTS, Infer, RequestedOutput, rank_bodies
from relaygr.serving.oip_tensors import OutputTensor, Value, read_tensors, write_tensor
from relaygr.serving.told import heed
from relaygr.serving.wire import RankBody

OCTETS = "application/octet-stream"
HEADER_LENGTH = "inference-header-content-length"
OUTPUTS = ("scores", "path")


class ServerMetadata(msgspec.Struct, frozen=True):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct, frozen=True):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class Live(msgspec.Struct, frozen=True):
    live: bool


class Ready(msgspec.Struct, frozen=True):
    ready: bool


class InferAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str | None = None


async def server(call: Call) -> ServerMetadata:
    return ServerMetadata("relaygr", __version__, ["binary_tensor_data"])


async def live(call: Call) -> Live:
    return Live(True)


async def ready(call: Call) -> Ready:
    status = call.service.health.status
    if status != "ready":
        raise NotReadyError(f"the service is {status}")
    return Ready(True)


async def model_ready(call: Call) -> Ready:
    _check_model(call)
    return await ready(call)


async def model(call: Call) -> ModelMetadata:
    version = _check_model(call)
    tasks = len(call.service.engine.model_config.tasks)
    return ModelMetadata(
        name=call.service.config.serving.name,
        versions=[version],
        platform="relaygr",
        inputs=[TensorMetadata(*found) for found in INPUTS],
        outputs=[TensorMetadata("scores", "FP32", [-1, tasks]), TensorMetadata("path", "BYTES", [1])],
    )


async def infer(call: Call) -> Reply:
    """Every row of the batch is ranked on its own; the first error is the answer for all."""
    version = call.names.get("version")
    _check_model(call)
    head, raw = _split(call)
    request = decode(_infer, head)
    bodies, batched = rank_bodies(
        read_tensors(request.inputs, raw), request.parameters, call.service.engine.config.max_batch_requests
    )
    heed(call.service, call.headers, call.caller.tenant, {body.user for body in bodies})
    answers = await _rank_all(call, bodies)
    served = answers[0][1].served.model.hex()
    if any(result.served.model.hex() != served for _, result in answers) or version not in (None, served):
        # Another model came in between; the client may ask again.
        raise HttpError(HTTPStatus.CONFLICT, "model_changed", "the model was replaced meanwhile")
    output = bodies[0].output
    shape, values = _padded([scores(result, output) for _, result in answers], batched)
    paths: Value = [path_of(job, result) for job, result in answers]
    tensors = {"scores": (shape, values), "path": ([len(paths)], paths)}
    outputs = [write_tensor(name, *tensors[name], binary=binary) for name, binary in _wanted(request)]
    head = _encoder.encode(
        InferAnswer(call.service.config.serving.name, served, [tensor for tensor, _ in outputs], request.id)
    )
    body = b"".join(part for _, part in outputs)
    if not any("binary_data_size" in tensor.parameters for tensor, _ in outputs):
        return Reply(head, content_type=JSON)
    return Reply(
        head + body,
        content_type=OCTETS.encode(),
        headers=[(HEADER_LENGTH.encode(), b"%d" % len(head))],
    )


async def _rank_all(call: Call, bodies: list[RankBody]) -> list[tuple[RankJob, RankResult]]:
    watch = asyncio.ensure_future(call.gone())
    tasks = [
        asyncio.ensure_future(call.service.score(call.caller.tenant, body, lambda: asyncio.shield(watch)))
        for body in bodies
    ]
    try:
        return await asyncio.gather(*tasks)
    finally:
        watch.cancel()
        for task in tasks:
            task.cancel()
        # Whatever the others ended in, the first error is the answer.
        await asyncio.gather(*tasks, return_exceptions=True)


def _check_model(call: Call) -> str:
    """The version that is served; HttpError 404 if the path names another model or version."""
    name, version = call.names["name"], call.names.get("version")
    if name != call.service.config.serving.name:
        raise HttpError(HTTPStatus.NOT_FOUND, "model", f"unknown model {name[:64]!r}", field="name")
    served = call.service.served.model
    if version is not None and version != served:
        raise HttpError(
            HTTPStatus.NOT_FOUND, "model", f"model {name!r} has no version {version[:64]!r}", field="version"
        )
    return served


def _split(call: Call) -> tuple[bytes, memoryview]:
    """The JSON and the raw bytes behind it."""
    body: bytes = call.body
    text = call.headers.get(HEADER_LENGTH)
    if text is None:
        return body, memoryview(b"")
    if not text.isdecimal() or len(text) > 12 or int(text) > len(body):
        raise HttpError(
            HTTPStatus.BAD_REQUEST,
            "header_length",
            f"{HEADER_LENGTH} {text[:32]!r} is outside [0, {len(body)}], the bytes of the body",
            field=HEADER_LENGTH,
        )
    return body[: int(text)], memoryview(body)[int(text) :]


def _padded(rows: list[Scores], batched: bool) -> tuple[list[int], Value]:
    """Scores of all rows as one float32 array, missing candidates 0, and its shape."""
    if not batched:
        return list(rows[0].shape), rows[0]
    longest = max(len(row) for row in rows)
    whole = np.zeros((len(rows), longest, rows[0].shape[1]), np.float32)
    for place, row in enumerate(rows):
        whole[place, : len(row)] = row
    return list(whole.shape), whole


def _wanted(request: Infer) -> list[tuple[str, bool]]:
    """Names of the outputs, and whether they are raw."""
    default = request.parameters.get("binary_data_output", False) is True
    asked = request.outputs if request.outputs is not None else [RequestedOutput(name=n) for n in OUTPUTS]
    for output in asked:
        if output.name not in OUTPUTS:
            raise RequestError("outputs", f"{output.name[:64]!r} is not one of {', '.join(OUTPUTS)}")
    return [(one.name, one.parameters.get("binary_data", default) is True) for one in asked]


_infer = msgspec.json.Decoder(Infer)
_encoder = msgspec.json.Encoder()
_MODEL = "/v2/models/{name}"
_VERSION = _MODEL + "/versions/{version}"


def _operation(method: str, path: str, handler: Any, summary: str, **more: Any) -> Operation:
    return Operation(method, path, handler, summary, shape=oip_error, **more)


def _infer_operation(path: str) -> Operation:
    return _operation(
        "POST",
        path,
        infer,
        "Rank: inputs user, candidates and more, outputs scores and path.",
        body=bytes,
        answer=InferAnswer,
        errors=(404, 409, 504),
        types=("application/json", OCTETS),
    )


OIP: tuple[Operation, ...] = (
    _operation("GET", "/v2", server, "The server.", answer=ServerMetadata, open=True),
    _operation("GET", "/v2/health/live", live, "Whether the process lives.", answer=Live, open=True),
    _operation("GET", "/v2/health/ready", ready, "Whether requests are served.", answer=Ready, open=True),
    _operation("GET", _MODEL, model, "The model.", answer=ModelMetadata, errors=(404,)),
    _operation("GET", _VERSION, model, "The model.", answer=ModelMetadata, errors=(404,)),
    _operation("GET", _MODEL + "/ready", model_ready, "Whether it serves.", answer=Ready, errors=(404,)),
    _operation("GET", _VERSION + "/ready", model_ready, "Whether it serves.", answer=Ready, errors=(404,)),
    _infer_operation(_MODEL + "/infer"),
    _infer_operation(_VERSION + "/infer"),
)
