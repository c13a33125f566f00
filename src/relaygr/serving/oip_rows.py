"""What the tensors of an inference request mean: one ranking a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
import numpy as np

from relaygr.core.errors import RequestError
from relaygr.serving.oip_tensors import MAX_TENSORS, InputTensor, Parameter, Tensor
from relaygr.serving.wire import Body, History, RankBody

INPUTS: tuple[tuple[str, str, list[int]], ...] = (
    ("user", "BYTES", [-1]),
    ("candidates", "INT64", [-1]),
    ("candidate_counts", "INT64", [-1]),
    ("query_time", "INT64", [-1]),
    ("items", "INT64", [-1]),
    ("timestamps", "INT64", [-1]),
    ("actions", "INT64", [-1]),
)
"""Names, datatypes and shapes of one row; a batch has another dimension in front."""

PARAMETERS = ("binary_data_output", "output", "timeout")
_TYPES = {name: datatype for name, datatype, _ in INPUTS}


class RequestedOutput(Body, frozen=True, kw_only=True):
    name: str
    parameters: dict[str, Parameter] = msgspec.field(default_factory=dict)


class Infer(Body, frozen=True, kw_only=True):
    """An inference request.

    Attributes:
        parameters: `timeout` in microseconds, `output` "logits" or "probabilities", `binary_data_output`.
    """

    inputs: Annotated[list[InputTensor], msgspec.Meta(max_length=MAX_TENSORS)]
    outputs: Annotated[list[RequestedOutput], msgspec.Meta(max_length=MAX_TENSORS)] | None = None
    id: str | None = None
    parameters: dict[str, Parameter] = msgspec.field(default_factory=dict)


def rank_bodies(
    tensors: Mapping[str, Tensor], parameters: Mapping[str, Parameter], limit: int
) -> tuple[list[RankBody], bool]:
    """One ranking for each row, and whether there is a batch dimension.

    Raises:
        RequestError: a tensor or parameter is unknown, missing, of a wrong shape, or there are too many rows.
    """
    for name in tensors:
        if name not in _TYPES:
            raise RequestError("inputs", f"{name[:64]!r} is not one of {', '.join(_TYPES)}")
    user, candidates = _need(tensors, "user", texts=True), _need(tensors, "candidates")
    batched = len(candidates.shape) == 2
    rows = candidates.shape[0] if batched else 1
    if not 1 <= rows <= limit:
        raise RequestError("candidates", f"{rows} rows are outside [1, {limit}]")
    if user.shape not in ((rows,), (rows, 1)):
        raise RequestError("user", f"shape {list(user.shape)} is not [{rows}]")
    matrix = candidates.rows() if batched else candidates.rows()[np.newaxis]
    counts = _counts(tensors, rows, matrix.shape[1])
    deadline_ms, output = _deadline_ms(parameters), _output(parameters)
    history = _history(tensors, batched)
    bodies = [
        RankBody(
            user=user.texts[row],
            candidates=matrix[row, : counts[row]].tolist(),
            query_time=_query_time(tensors, row, rows, counts[row], batched),
            deadline_ms=deadline_ms,
            output=output,
            history=history,
        )
        for row in range(rows)
    ]
    return bodies, batched


def _need(tensors: Mapping[str, Tensor], name: str, *, texts: bool = False) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        raise RequestError("inputs", f"{name} is missing")
    if not texts:
        return _numbers(tensor)
    if len(tensor.texts) != int(np.prod(tensor.shape)):
        raise RequestError(name, "must be BYTES")
    return tensor


def _numbers(tensor: Tensor) -> Tensor:
    if len(tensor.numbers) != int(np.prod(tensor.shape)):
        raise RequestError(tensor.name, "must be INT64")
    return tensor


def _counts(tensors: Mapping[str, Tensor], rows: int, width: int) -> list[int]:
    tensor = tensors.get("candidate_counts")
    if tensor is None:
        return [width] * rows
    if tensor.shape not in ((rows,), (rows, 1)):
        raise RequestError("candidate_counts", f"shape {list(tensor.shape)} is not [{rows}]")
    counts: list[int] = _numbers(tensor).numbers.tolist()
    for count in counts:
        if not 0 <= count <= width:
            raise RequestError("candidate_counts", f"{count} is outside [0, {width}]")
    return counts


def _query_time(
    tensors: Mapping[str, Tensor], row: int, rows: int, count: int, batched: bool
) -> int | list[int] | None:
    """Of a row: one time for all its candidates, or one each."""
    tensor = tensors.get("query_time")
    if tensor is None:
        return None
    numbers = _numbers(tensor).rows()
    if numbers.shape in ((rows,), (rows, 1)):
        return int(numbers.reshape(rows)[row])
    whole = numbers.shape == (rows, max(numbers.shape[-1], count)) if batched else numbers.shape == (count,)
    if whole:
        times: list[int] = (numbers[row] if batched else numbers)[:count].tolist()
        return times
    raise RequestError("query_time", f"shape {list(tensor.shape)} is neither [{rows}] nor one a candidate")


def _history(tensors: Mapping[str, Tensor], batched: bool) -> History | None:
    found = {name: tensors[name] for name in ("items", "timestamps", "actions") if name in tensors}
    if not found:
        return None
    if batched:
        raise RequestError(next(iter(found)), "comes with one user, not with a batch")
    for name, tensor in found.items():
        if len(tensor.shape) != 1:
            raise RequestError(name, f"shape {list(tensor.shape)} has more than one dimension")
    actions = _numbers(found["actions"]).numbers.tolist() if "actions" in found else None
    return History(
        items=_need(found, "items").numbers.tolist(),
        timestamps=_need(found, "timestamps").numbers.tolist(),
        actions=actions,
    )


def _deadline_ms(parameters: Mapping[str, Parameter]) -> float | None:
    for name in parameters:
        if name not in PARAMETERS:
            raise RequestError("parameters", f"{name[:64]!r} is not one of {', '.join(PARAMETERS)}")
    timeout = parameters.get("timeout")
    if timeout is None:
        return None
    if not isinstance(timeout, int) or isinstance(timeout, bool) or not 0 < timeout < 1 << 63:
        raise RequestError("parameters.timeout", f"{str(timeout)[:32]} must be microseconds above 0")
    return timeout / 1000


def _output(parameters: Mapping[str, Parameter]) -> Literal["logits", "probabilities"]:
    output = parameters.get("output", "logits")
    if output == "logits":
        return "logits"
    if output == "probabilities":
        return "probabilities"
    raise RequestError("parameters.output", f"{str(output)[:32]!r} is not 'logits' or 'probabilities'")
