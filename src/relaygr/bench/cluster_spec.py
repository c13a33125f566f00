"""What `bench cluster` runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relaygr.bench.cluster_shapes import SHAPES
from relaygr.core.errors import ConfigError
from relaygr.models.presets import PRESETS

Part = Literal["chaos", "scale"]


def _check(*limits: tuple[str, float, float, float]) -> None:
    for option, value, low, high in limits:
        if not low <= value <= high:
            raise ConfigError(option, f"{value} is outside [{low}, {high}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSpec:
    """Closed-loop load on some numbers of replicas in turn.

    Attributes:
        counts: of replicas, ascending.
        rounds: measurements of each; the medians count. window_s: of one.
        clients: visits on their way at once, for each replica.
        preset: of the model, which has random weights.
        events: of each visit's history; candidates: of its ranking.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    counts: tuple[int, ...] = (1, 2, 4)
    rounds: int = 5
    window_s: float = 8.0
    clients: int = 6
    preset: str = "hstu-small"
    events: int = 1024
    candidates: int = 128
    deadline_ms: float = 20_000.0

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ConfigError("--scale-preset", f"{self.preset!r} is none of {', '.join(PRESETS)}")
        if not self.counts or list(self.counts) != sorted(set(self.counts)):
            raise ConfigError("--scale", f"{self.counts} must ascend")
        _check(
            ("--scale", self.counts[0], 1, 64),
            ("--scale", self.counts[-1], 1, 64),
            ("--scale-rounds", self.rounds, 1, 1000),
            ("--scale-window-s", self.window_s, 0.5, 3600),
            ("--scale-events", self.events, 1, 100_000),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What to run.

    Attributes:
        shapes: that are put to the test, one after the other; the part "scale" is run for the first.
        rate: visits a second, open loop, spread over `users` at random. phase_s: of each phase, at least.
        events: of each user's history. deadline_ms: of each lap.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    shapes: tuple[str, ...] = tuple(SHAPES)
    parts: tuple[Part, ...] = ("chaos", "scale")
    replicas: int = 3
    users: int = 1000
    rate: float = 30.0
    phase_s: float = 20.0
    events: int = 128
    candidates: int = 64
    deadline_ms: float = 2000.0
    seed: int = 0
    scale: ScaleSpec = ScaleSpec()

    def __post_init__(self) -> None:
        for shape in self.shapes:
            if shape not in SHAPES:
                raise ConfigError("--shape", f"{shape!r} is none of {', '.join(SHAPES)}")
        if not self.shapes:
            raise ConfigError("--shape", "names none")
        _check(
            ("--replicas", self.replicas, 2, 64),
            ("--users", self.users, 1, 1_000_000),
            ("--rate", self.rate, 0.1, 10_000),
            ("--phase-s", self.phase_s, 0.5, 3600),
            ("--events", self.events, 1, 100_000),
            ("--candidates", self.candidates, 1, 16_384),
            ("--deadline-ms", self.deadline_ms, 1, 600_000),
        )
