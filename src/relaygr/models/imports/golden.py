"""Stored examples of each published variant: weights, rows, and the logits of an independent formula."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from torch import Tensor

from relaygr.core.errors import BackendError
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.hstu import HstuConfig
from relaygr.models.initial import blank
from relaygr.models.ranker import Ranker, RowInput
from relaygr.models.variants import Variant

TOLERANCE = 1e-9


def golden_difference(variant: Variant, folder: Traversable | None = None) -> float:
    """Largest difference of a logit to the stored example, computed in float64 by the reference kernel.

    Raises:
        BackendError: the example is missing, damaged or of another variant, or the difference is more than
            `TOLERANCE`: this installation does not compute what the published code does.
    """
    place = (folder or files(__package__) / "golden") / f"{variant}.safetensors"
    try:
        data = place.read_bytes()
        tensors = deserialize(data)
        config = _config(data)
    except (OSError, SafetensorError, msgspec.MsgspecError, ValueError, LookupError) as error:
        raise BackendError(f"golden example {place}: cannot be read: {error}") from error
    if config.variant != variant:
        raise BackendError(f"golden example {place}: is of variant {config.variant!r}")
    difference = _compare(config, tensors)
    if not difference <= TOLERANCE:  # a NaN is no agreement either
        raise BackendError(
            f"golden example {place}: logits differ by {difference:.3g}, more than {TOLERANCE:g}; "
            "this installation does not reproduce the published computation"
        )
    return difference


def _config(data: bytes) -> HstuConfig:
    """From the metadata of the file's header."""
    size = int.from_bytes(data[:8], "little")
    header = msgspec.json.decode(data[8 : 8 + size], type=dict[str, msgspec.Raw])
    metadata = msgspec.json.decode(header["__metadata__"], type=dict[str, str])
    return msgspec.json.decode(metadata["config"], type=HstuConfig)


def _compare(config: HstuConfig, tensors: dict[str, Tensor]) -> float:
    with blank():
        model = Ranker(config)
    state = {
        name.removeprefix("weights."): tensor.double()
        for name, tensor in tensors.items()
        if name.startswith("weights.")
    }
    model.load_state_dict(state, assign=True)
    model.eval().requires_grad_(False)
    numbers = sorted({int(match[1]) for name in tensors if (match := re.match(r"logits\.(\d+)$", name))})
    if not numbers:
        return float("nan")
    rows = [_row(tensors, number) for number in numbers]
    got = torch.cat(model(rows, ReferenceKernel()))
    return float((got - torch.cat([tensors[f"logits.{number}"] for number in numbers])).abs().max())


def _row(tensors: dict[str, Tensor], number: int) -> RowInput:
    def field(name: str) -> Tensor:
        return tensors[f"row.{number}.{name}"].reshape(-1)

    query = field("query_time")
    return RowInput(
        contextual=field("contextual"),
        items=field("items"),
        timestamps=field("timestamps"),
        actions=field("actions"),
        candidates=field("candidates"),
        query_time=int(query[0]) if len(query) == 1 else query,
    )
