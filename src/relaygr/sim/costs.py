"""What things take: a fitted latency model, its scatter, and what a request, a copy and a network add."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import msgspec

from relaygr.core.errors import ConfigError
from relaygr.core.units import KIB
from relaygr.relay.calibration import Calibration, load_calibration
from relaygr.relay.latency import Coefficients, Pass

# A pass scatters like the measured passes of about its length.
_NEIGHBOURS = 2
# Passes that stand for all of their kind.
_WHOLE, _CHUNK = Pass(new_tokens=2048, candidates=128), Pass(new_tokens=256, cached_tokens=2048, chunk=True)
_HIT = Pass(new_tokens=0, cached_tokens=2048, candidates=128)


class Scatter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured over fitted times of one shape, whose fitted time is `fit_ms`.

    Attributes:
        hit: a ranking whose history was found.
    """

    fit_ms: float
    chunk: bool
    ratios: tuple[float, ...]
    hit: bool = False


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The speed of every instance.

    Attributes:
        coefficients: of passes.
        scatter: how measured passes differ from them; empty runs every pass in its fitted time.
        overhead_ms: from the time a request is due until its work could begin with nothing before it, and
            from the end of the work to the answer, together: HTTP, event loops and threads.
        token_bytes: of a history token in device and host memory.
        link_bytes_per_s, link_ms: of a copy between host and device, and what each costs beside its bytes.
        network_bytes_per_s, network_ms: the same of a copy from another instance; only `remote_fetch` makes
            any. 25 Gb/s take 10.7 ms for 32 MiB.
    """

    coefficients: Coefficients
    scatter: tuple[Scatter, ...] = ()
    overhead_ms: float = 0.0
    token_bytes: int = 4 * KIB
    link_bytes_per_s: float = 4e9
    link_ms: float = 0.05
    network_bytes_per_s: float = 25e9 / 8
    network_ms: float = 0.0

    def __post_init__(self) -> None:
        for name, low in (
            ("overhead_ms", 0.0),
            ("token_bytes", 1),
            ("link_bytes_per_s", 1.0),
            ("link_ms", 0.0),
            ("network_bytes_per_s", 1.0),
            ("network_ms", 0.0),
        ):
            value = getattr(self, name)
            # Written so that NaN is refused.
            if not low <= value <= 1e15:
                raise ConfigError(f"costs.{name}", f"{value} must be in [{low:g}, 1e15]")

    @property
    def timed(self) -> list[tuple[Pass, float]]:
        """What a server that calibrated itself starts from: passes, and what they took in milliseconds."""
        found = []
        for one in self.scatter:
            shape = _HIT if one.hit else _CHUNK if one.chunk else _WHOLE
            fitted_ms = self.coefficients.batch_ms([shape])
            found += [(shape, ratio * fitted_ms) for ratio in one.ratios]
        return found

    def link_s(self, nbytes: int) -> float:
        return self.link_ms / 1000 + nbytes / self.link_bytes_per_s

    def network_s(self, nbytes: int) -> float:
        return self.network_ms / 1000 + nbytes / self.network_bytes_per_s


def measured(calibration: Calibration, scatter: bool = True) -> Costs:
    """The costs of a calibration; copies, overhead and bytes are at their defaults."""
    fitted = calibration.coefficients
    found = []
    for point in calibration.points:
        fit_ms = fitted.batch_ms([point.shape])
        if fit_ms > 0:
            ratios = tuple(ms / fit_ms for ms in point.times_ms)
            shape = point.shape
            hit = not shape.chunk and 4 * shape.new_tokens < shape.cached_tokens
            found.append(Scatter(fit_ms=fit_ms, chunk=shape.chunk, ratios=ratios, hit=hit))
    return Costs(coefficients=fitted, scatter=tuple(found) if scatter else ())


def measured_file(file: Path, scatter: bool = True) -> Costs:
    """`measured` of a file of `relaygr calibrate --json`.

    Raises:
        ConfigError: as `load_calibration`.
    """
    return measured(load_calibration(file), scatter)


class Noise:
    """Draws how much longer than fitted a pass takes."""

    __slots__ = ("_fits", "_ratios", "_rng")

    def __init__(self, costs: Costs, seed: int) -> None:
        self._rng = random.Random(seed)
        self._fits: dict[bool, list[float]] = {}
        self._ratios: dict[bool, list[Sequence[float]]] = {}
        for chunk in (False, True):
            mine = sorted((one.fit_ms, one.ratios) for one in costs.scatter if one.chunk == chunk)
            self._fits[chunk] = [fit_ms for fit_ms, _ in mine]
            self._ratios[chunk] = [ratios for _, ratios in mine]

    def ratio(self, fit_ms: float, chunk: bool = False) -> float:
        """Of a pass with this fitted time; 1 where nothing was measured."""
        fits = self._fits[chunk]
        if not fits:
            return 1.0
        place = bisect_left(fits, fit_ms)
        if len(fits) <= _NEIGHBOURS:  # then the nearest alone
            near_low = place and (place == len(fits) or fit_ms * fit_ms < fits[place - 1] * fits[place])
            low = place - 1 if near_low else place
            high = low + 1
        else:
            low, high = max(place - _NEIGHBOURS, 0), min(place + _NEIGHBOURS, len(fits))
        rng = self._rng.random
        near = self._ratios[chunk][low + int(rng() * (high - low))]
        return near[int(rng() * len(near))]
