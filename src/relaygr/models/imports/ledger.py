"""What an importer asks of a checkpoint, tensor by tensor, until nothing is missing and nothing is left."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relaygr.core.errors import ConfigError

_MAX_PROBLEMS = 1000
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_MAX_LAYERS = 128
_NOT_NEEDED = re.compile(r"(^|\.)_extra_state$")  # of layers that quantise; empty in others

Change = Callable[[Tensor], Tensor]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def transposed(tensor: Tensor) -> Tensor:
    return tensor.t()


@dataclass(frozen=True, slots=True)
class Told:
    """What a tensor says about a size, in words to quote; no value if it is absent or of another rank."""

    words: str
    value: int | None


class Ledger:
    """Tensors by their published names, the state dict made of them so far, and every problem found.

    Problems are collected and raised by `close` together; only what stops the reading raises at once.
    """

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        self.where = where
        self.state: dict[str, Tensor] = {}
        self.ignored: list[str] = []
        self.problems: list[str] = []
        self.rounded = False
        self._values = dict(values)
        self._left = dict(values)

    def has(self, name: str) -> bool:
        return name in self._values

    def any(self, prefix: str) -> bool:
        """Whether some name starts so."""
        return any(name.startswith(prefix) for name in self._values)

    def names(self, pattern: str) -> list[str]:
        """Names that match as a whole."""
        return [name for name in self._values if re.fullmatch(pattern, name)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor; empty if it is not there."""
        value = self._values.get(name)
        return tuple(value.shape) if isinstance(value, Tensor) else ()

    def axis(self, name: str, axis: int, rank: int) -> Told:
        """The size of one axis of a tensor."""
        shape = self.shape(name)
        words = f"{name} has shape {list(shape)}" if self.has(name) else f"missing {name}"
        if len(shape) == rank:
            return Told(words, shape[axis])
        return Told(f"{words}, wanted {rank} axes" if shape else words, None)

    def layers(self, prefix: str, given: int | None) -> int:
        """Layers by the highest index behind `prefix`."""
        found = (re.match(re.escape(prefix) + r"(\d{1,9})\.", name) for name in self._values)
        count = 1 + max((int(match[1]) for match in found if match), default=-1)
        if not 1 <= count <= _MAX_LAYERS:
            raise ConfigError(self.where, f"{prefix}N: {count} layers are outside [1, {_MAX_LAYERS}]")
        if given is not None and given != count:
            self.problems.append(
                f"num_layers: {given} in the configuration, but {prefix}{count - 1} is the last"
            )
        return count

    def size(self, key: str, given: int | None, told: Sequence[Told]) -> int:
        """A size that several shapes tell: what most of them say.

        Args:
            given: the configuration's value; another one than the shapes' is a problem.
        """
        values = [one.value for one in told if one.value is not None]
        if not values and given is None:
            self.problems += [f"{one.words}, which would tell {key}" for one in told]
            raise ConfigError(self.where, self._summary())
        if not values:
            return given or 0
        value = Counter(values).most_common(1)[0][0]
        if given is not None and given != value:
            words = next(one.words for one in told if one.value == value)
            self.problems.append(f"{key}: {given} in the configuration, but {words}, which makes it {value}")
        return value

    def move(self, name: str, target: str, shape: tuple[int, ...], change: Change = _same) -> None:
        """Take a tensor of `shape`, as stored, into the state dict under `target`."""
        tensor = self.take(name, shape)
        if tensor is not None:
            self.state[target] = change(tensor).contiguous()

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """A tensor as float32, or None after noting what is wrong with it."""
        if name not in self._values:
            self.problems.append(f"missing {name} {list(shape)}")
            return None
        value = self._left.pop(name, self._values[name])
        problem = _problem(name, value, shape)
        if problem:
            self.problems.append(problem)
            return None
        assert isinstance(value, Tensor)
        if not value.numel():
            self.problems.append(f"{name} {list(shape)} is empty")
            return None
        self.rounded |= value.dtype == torch.float64
        tensor = value.detach().float()
        if not bool(torch.isfinite(tensor).all()):
            self.problems.append(f"not finite: {name}")
            return None
        return tensor

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A short list of whole numbers, or None if the name is not there."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        if isinstance(value, Tensor) and value.dtype in _WHOLE and value.dim() == 1 and len(value) <= 64:
            return tuple(int(one) for one in value)
        self.problems.append(f"{name} is not a list of up to 64 whole numbers")
        return None

    def causal(self, name: str) -> None:
        """Drop a stored mask of hidden keys if it is there; it must hide exactly what comes later."""
        value = self._left.pop(name, None)
        if value is None:
            return
        if isinstance(value, Tensor) and value.dim() == 2:
            hidden = torch.ones(value.shape, dtype=torch.bool).triu_(1)
            if not torch.equal(value.bool(), hidden):
                self.problems.append(f"{name} is not the causal mask, which is all that is supported")
        self.ignored.append(name)

    def expect(self, name: str, values: tuple[float, ...]) -> None:
        """Drop a stored constant if it is there; another value than ours is a problem."""
        value = self._left.pop(name, None)
        if value is None:
            return
        got = value.flatten().tolist() if isinstance(value, Tensor) and value.numel() <= 64 else value
        if got != list(values):
            self.problems.append(f"{name} is {got!r}, only {list(values)} is supported")
        self.ignored.append(name)

    def ignore(self, pattern: str) -> None:
        """Drop what is stored and not needed."""
        for name in [name for name in self._left if re.fullmatch(pattern, name)]:
            del self._left[name]
            self.ignored.append(name)

    def refuse(self, pattern: str, reason: str) -> None:
        """Name tensors of a feature that is not supported."""
        for name in [name for name in self._left if re.fullmatch(pattern, name)]:
            del self._left[name]
            self.problems.append(f"{name} is not supported: {reason}")

    def close(self) -> None:
        """Raise ConfigError with all problems, counting what nobody asked for as one each."""
        for name in self._left:
            if _NOT_NEEDED.search(name):
                self.ignored.append(name)
            else:
                shape = self.shape(name)
                self.problems.append(f"unexpected {name}" + (f" {list(shape)}" if shape else ""))
        if self.problems:
            raise ConfigError(self.where, self._summary())

    def _summary(self) -> str:
        shown = self.problems[:_MAX_PROBLEMS]
        rest = len(self.problems) - len(shown)
        return "; ".join(shown) + (f"; and {rest} more" if rest else "")


def _problem(name: str, value: object, shape: tuple[int, ...]) -> str:
    if not isinstance(value, Tensor):
        return f"{name} holds {type(value).__name__}, wanted a tensor {list(shape)}"
    if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
        return f"{name} is not a plain tensor ({value.layout}, {value.dtype}, {value.device})"
    if tuple(value.shape) != shape:
        return f"{name} has shape {list(value.shape)}, wanted {list(shape)}"
    if not value.is_floating_point():
        return f"{name} holds {str(value.dtype).removeprefix('torch.')}, wanted floating point"
    return ""
