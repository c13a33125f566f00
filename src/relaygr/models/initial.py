"""Initial values of parameters, and modules that go without: their weights come from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


def normal(*shape: int, std: float) -> nn.Parameter:
    """A parameter of normal values around 0."""
    return nn.Parameter(nn.init.normal_(torch.empty(shape), std=std))


@contextmanager
def blank() -> Iterator[None]:
    """Whatever module is made inside has shapes only."""
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Leaves parameters as they are where `torch.nn.init` would fill them.

    Nothing comes of it on the meta device, but torch makes normal values there in Python, and imports its
    compiler for that, which takes longer than all the rest of opening a small model.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else given["tensor"]
        return func(*args, **given)
