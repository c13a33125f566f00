"""Tensors of the Open Inference Protocol: from JSON or raw bytes, and back.

Raw numbers are little-endian in row-major order; a raw string is its length in four bytes, then its bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from relaygr.core.errors import RequestError
from relaygr.serving.exchange import decode
from relaygr.serving.wire import Body, Int

Parameter = bool | int | float | str
Size = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Value = npt.NDArray[np.float32] | list[str]

_Item = TypeVar("_Item")

MAX_TENSORS = 16
_LENGTH = struct.Struct("<I")
_flat_ints = msgspec.json.Decoder(list[Int])
_nested_ints = msgspec.json.Decoder(list[list[Int]])
_flat_texts = msgspec.json.Decoder(list[str])
_nested_texts = msgspec.json.Decoder(list[list[str]])


class InputTensor(Body, frozen=True, kw_only=True):
    """A tensor of a request; `data` unless `parameters.binary_data_size` says that it follows the JSON."""

    name: str
    shape: Annotated[list[Size], msgspec.Meta(min_length=1, max_length=2)]
    datatype: str
    parameters: dict[str, Parameter] = msgspec.field(default_factory=dict)
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class OutputTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor of an answer."""

    name: str
    shape: list[int]
    datatype: str
    data: list[float | str] | None = None
    parameters: dict[str, Parameter] = {}


@dataclass(frozen=True, slots=True)
class Tensor:
    """int64 or strings, in row-major order, with their shape."""

    name: str
    shape: tuple[int, ...]
    numbers: npt.NDArray[np.int64]
    texts: list[str]

    def rows(self) -> npt.NDArray[np.int64]:
        """int64 of the tensor's shape."""
        return self.numbers.reshape(self.shape)


def read_tensors(inputs: Sequence[InputTensor], raw: memoryview) -> dict[str, Tensor]:
    """The inputs by name; `raw` is what follows the JSON, in the order of the inputs.

    Raises:
        RequestError: a tensor is there twice, of another type or size than it says, or bytes are left over.
    """
    if len(inputs) > MAX_TENSORS:
        raise RequestError("inputs", f"{len(inputs)} tensors, limit {MAX_TENSORS}")
    found: dict[str, Tensor] = {}
    for entry in inputs:
        if entry.name in found:
            raise RequestError("inputs", f"{entry.name[:64]!r} is there twice")
        size = entry.parameters.get("binary_data_size")
        if size is None:
            found[entry.name] = _from_json(entry)
            continue
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(raw):
            raise RequestError(
                entry.name, f"binary_data_size {size!r} is outside [0, {len(raw)}], the bytes there are"
            )
        found[entry.name] = _from_bytes(entry, raw[:size])
        raw = raw[size:]
    if len(raw):
        raise RequestError("inputs", f"{len(raw)} bytes belong to no tensor")
    return found


def write_tensor(
    name: str, shape: Sequence[int], value: Value, *, binary: bool
) -> tuple[OutputTensor, bytes]:
    """A tensor of an answer, and the bytes behind the JSON that hold it."""
    kind = "BYTES" if isinstance(value, list) else "FP32"
    if not binary:
        data: list[float | str] = []
        data += value if isinstance(value, list) else value.ravel().tolist()
        return OutputTensor(name, list(shape), kind, data), b""
    if isinstance(value, list):
        encoded = [text.encode() for text in value]
        raw = b"".join(part for text in encoded for part in (_LENGTH.pack(len(text)), text))
    else:
        raw = value.astype("<f4").tobytes()
    return OutputTensor(name, list(shape), kind, None, {"binary_data_size": len(raw)}), raw


def _from_json(entry: InputTensor) -> Tensor:
    data = bytes(entry.data)
    if not data:
        raise RequestError(entry.name, "has neither data nor parameters.binary_data_size")
    nested = len(entry.shape) == 2 and data[1:].lstrip()[:1] == b"["
    if entry.datatype == "INT64":
        numbers = _flat(_nested_ints, data, entry) if nested else decode(_flat_ints, data)
        _check_count(entry, len(numbers))
        return Tensor(entry.name, tuple(entry.shape), np.asarray(numbers, np.int64), [])
    if entry.datatype == "BYTES":
        texts = _flat(_nested_texts, data, entry) if nested else decode(_flat_texts, data)
        _check_count(entry, len(texts))
        return Tensor(entry.name, tuple(entry.shape), _NONE, texts)
    raise _wrong_type(entry)


def _from_bytes(entry: InputTensor, raw: memoryview) -> Tensor:
    if len(bytes(entry.data)):
        raise RequestError(entry.name, "has both data and parameters.binary_data_size")
    if entry.datatype == "INT64":
        if len(raw) % 8:
            raise RequestError(entry.name, f"{len(raw)} bytes are no whole number of INT64")
        _check_count(entry, len(raw) // 8)
        return Tensor(entry.name, tuple(entry.shape), np.frombuffer(raw, "<i8").astype(np.int64), [])
    if entry.datatype == "BYTES":
        texts = _texts(entry, raw)
        _check_count(entry, len(texts))
        return Tensor(entry.name, tuple(entry.shape), _NONE, texts)
    raise _wrong_type(entry)


def _texts(entry: InputTensor, raw: memoryview) -> list[str]:
    found: list[str] = []
    while len(raw):
        size = _LENGTH.unpack_from(raw)[0] if len(raw) >= _LENGTH.size else len(raw)
        text = raw[_LENGTH.size : _LENGTH.size + size]
        if len(raw) < _LENGTH.size or len(text) < size:
            raise RequestError(entry.name, f"element {len(found)} ends behind the end of the tensor")
        try:
            found.append(str(text, "utf-8"))
        except UnicodeDecodeError as error:
            raise RequestError(entry.name, f"element {len(found)} is not UTF-8: {error.reason}") from error
        raw = raw[_LENGTH.size + size :]
    return found


def _flat(decoder: msgspec.json.Decoder[list[list[_Item]]], data: bytes, entry: InputTensor) -> list[_Item]:
    rows = decode(decoder, data)
    height, width = entry.shape
    if len(rows) != height or any(len(row) != width for row in rows):
        raise RequestError(entry.name, f"the data are not of shape {entry.shape}")
    return [value for row in rows for value in row]


def _check_count(entry: InputTensor, count: int) -> None:
    if count != math.prod(entry.shape):
        raise RequestError(entry.name, f"{count} elements are not of shape {entry.shape}")


def _wrong_type(entry: InputTensor) -> RequestError:
    return RequestError(entry.name, f"datatype {entry.datatype[:32]!r} is not INT64 or BYTES")


_NONE = np.zeros(0, np.int64)
