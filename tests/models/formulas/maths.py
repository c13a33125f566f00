"""What the formulas share: a request's row, norms, small networks, which tokens see one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Row:
    """One request; times in seconds, a query time for all candidates or one for each."""

    contextual: list[int]
    items: list[int]
    times: list[int]
    actions: list[int]
    candidates: list[int]
    query_time: int | list[int]
    offset: int = 0
    queries: list[int] = field(init=False)  # of each candidate

    def __post_init__(self) -> None:
        one = isinstance(self.query_time, int)
        queries = [self.query_time] * len(self.candidates) if one else list(self.query_time)
        object.__setattr__(self, "queries", queries)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def plain_norm(x: np.ndarray, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)


def norm(p: Arrays, name: str, x: np.ndarray, eps: float) -> np.ndarray:
    return plain_norm(x, eps) * p[f"{name}.weight"] + p[f"{name}.bias"]


def rms_norm(p: Arrays, name: str, x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * p[f"{name}.weight"]


def linear(p: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0.0)


def swish_stack(p: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    hidden = linear(p, f"{name}.first", x)
    hidden = hidden * sigmoid(norm(p, f"{name}.norm", hidden, 1e-5))
    return linear(p, f"{name}.second", hidden)


def relu_network(p: Arrays, name: str, x: np.ndarray, layers: int, last: bool) -> np.ndarray:
    for i in range(layers):
        x = linear(p, f"{name}.layers.{i}", x)
        if i < layers - 1 or last:
            x = np.maximum(x, 0)
    return x


def unit_length(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.sqrt((x**2).sum(-1, keepdims=True)), 1e-6)


def hash_row(value: int, rows: int, seed: int) -> int:
    """SplitMix64's finaliser on Python integers."""
    mask = (1 << 64) - 1
    x = (value + seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    x ^= x >> 31
    return (x >> 1) % rows


def visible(
    slots: int, n: int, targets: int, *, two_way: bool = False, window: int = 0, full_tail: int = 0
) -> np.ndarray:
    """Boolean [n, n]: whether token i of a row sees token j, by ids as the mask is defined."""
    shared = two_way and slots > 0
    end = n - targets - slots + 1 if shared else n - targets
    ids = [max(i - slots + 1, 0) if shared else i for i in range(n - targets)] + [end] * targets
    mask = np.zeros((n, n), bool)
    for i in range(n):
        for j in range(n):
            see = i == j or ids[i] > ids[j]
            if window and not (full_tail and ids[i] >= end - full_tail):
                see = see and ids[i] - ids[j] <= window
            mask[i, j] = see or (shared and ids[i] == 0 and ids[j] < end)
    return mask


def stacked(rows: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Rows [n, width], also of none."""
    return np.array(rows, np.float64).reshape(len(rows), width)
