"""Engines of the demonstration: over random weights, and with as many threads as help."""

from __future__ import annotations

import statistics
import time
from typing import Literal

import numpy as np
import torch

from relaygr.bench.machine import usable_cores
from relaygr.bench.timing import time_ms
from relaygr.config.settings import EngineConfig
from relaygr.core.ids import DEFAULT_TENANT, Fingerprint
from relaygr.core.units import MIB
from relaygr.engine.engine import Engine
from relaygr.engine.history import UserHistory
from relaygr.engine.requests import RankRequest
from relaygr.kernels.select import choose
from relaygr.models.presets import AnyConfig
from relaygr.models.ranker import Ranker

# One user at a time, and the version that replaces it.
SETTINGS = EngineConfig(device_bytes=512 * MIB)
_PROBE_EVENTS = 2048
_PROBE_CANDIDATES = 128
_PROBE_ROUNDS = 5
_PROBE_LIMIT_S = 4.0
# More threads must pay: they get in the way of retrieval, and of other programs.
_THREADS_GAIN = 0.9


def pick_threads(config: AnyConfig, seed: int) -> tuple[int, dict[str, float]]:
    """How many threads one full pass should use here and now, and its median milliseconds with each number.

    On a machine that others use too, a second thread that has to wait for its core slows the first one down.
    """
    torch.manual_seed(seed)
    engine = random_engine(config, "fp32")
    rng = np.random.default_rng(seed)
    length = min(_PROBE_EVENTS, config.max_history)
    history = UserHistory("probe", rng.integers(1, 1000, length), np.arange(length))
    request = RankRequest(history, rng.integers(1, 1000, _PROBE_CANDIDATES))
    numbers = sorted({1, usable_cores()})
    times: dict[int, list[float]] = {number: [] for number in numbers}
    begun = time.monotonic()
    for turn in range(_PROBE_ROUNDS):
        if turn >= 2 and time.monotonic() - begun > _PROBE_LIMIT_S:
            break
        for number in numbers:
            torch.set_num_threads(number)
            engine.forget(DEFAULT_TENANT, "probe")
            times[number].append(time_ms(lambda: engine.rank(request)))
    medians = {number: statistics.median(samples[1:]) for number, samples in times.items()}
    fastest = min(numbers, key=lambda number: medians[number])
    best = fastest if medians[fastest] < _THREADS_GAIN * medians[1] else 1
    return best, {str(number): round(median, 2) for number, median in medians.items()}


def random_engine(config: AnyConfig, dtype: Literal["fp32", "bf16", "auto"]) -> Engine:
    """An engine over random weights, for times only."""
    choice = choose("auto", dtype)
    model = Ranker(config).requires_grad_(False).cast(choice.dtype)
    return Engine(model, Fingerprint(b"random weights.."), choice, SETTINGS)
