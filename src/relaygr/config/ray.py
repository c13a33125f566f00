"""The settings of the Ray Serve shape: how many processes, and how much waits for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError


class RayConfig(Section, frozen=True, kw_only=True):
    """Replicas on a Ray cluster.

    Attributes:
        replicas: rankers; with `replicas_max` above it, the least that autoscaling keeps.
        replicas_max: most rankers that autoscaling starts; 0 does not scale.
        target_ongoing: requests in progress on a ranker that autoscaling aims at.
        upscale_delay_s, downscale_delay_s: how long the load must ask for more, or for fewer, rankers.
        ongoing_max: requests that a ranker takes at once; 0 takes `serving.requests_max` and some for polls.
            One more is refused: a ranking goes to the next choice, a prefix signal nowhere.
        take_ms: longest wait until a ranker takes a request; then it goes to the next choice.
        ingresses: processes in front of the rankers.
        ranker_cpus, ingress_cpus: what Ray reserves for each; it limits nothing.
    """

    PATH: ClassVar[str] = "ray"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "replicas": Range(1, 4096),
        "replicas_max": Range(0, 4096),
        "target_ongoing": Range(0, 1 << 20, open_low=True),
        "upscale_delay_s": Range(0, 86_400),
        "downscale_delay_s": Range(0, 86_400),
        "ongoing_max": Range(0, 1 << 20),
        "take_ms": Range(1, 600_000),
        "ingresses": Range(1, 1024),
        "ranker_cpus": Range(0, 1024),
        "ingress_cpus": Range(0, 1024),
    }

    replicas: int = 2
    replicas_max: int = 0
    target_ongoing: float = 8.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    ongoing_max: int = 0
    take_ms: float = 1000.0
    ingresses: int = 1
    ranker_cpus: float = 1.0
    ingress_cpus: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas_max and self.replicas_max < self.replicas:
            least = f"at least {self.key('replicas')} = {self.replicas}"
            raise ConfigError(self.key("replicas_max"), f"{self.replicas_max} must be 0 or {least}")
