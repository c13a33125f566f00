"""What `bench serve` sends, and how fast."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from relaygr.core.errors import ConfigError

POISSON = "poisson"
MAX_RATE = 100_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """One open-loop load: visits of stored users, each a prefix signal and, `lead_ms` later, a ranking.

    Attributes:
        rate: visits a second, on average.
        arrivals: `poisson`, or a CSV file whose column TIMESTAMP gives the gaps, scaled to `rate`.
        duration_s, warmup_s: measured time, and time before it that is not.
        users, history: stored before the load begins, and removed after it.
        skew: of the users' popularity, the exponent of a Zipf law; 0 draws all alike.
        candidates: of each ranking; new_events: appended before each prefix signal.
        items: ids are drawn from 1 to this.
        prefix: whether prefix signals are sent; lead_ms: how long before the ranking.
        deadline_ms: an answer after it is no good; sent with the ranking.
        timeout_ms: when the client gives up.
        connections: most requests on their way at once; what comes beyond is missed, and counted.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    url: str
    rate: float = 20.0
    arrivals: str = POISSON
    duration_s: float = 10.0
    warmup_s: float = 2.0
    users: int = 64
    history: int = 1024
    skew: float = 0.0
    candidates: int = 128
    new_events: int = 1
    items: int = 50_000
    prefix: bool = True
    lead_ms: float = 80.0
    deadline_ms: float = 1000.0
    timeout_ms: float = 10_000.0
    connections: int = 512
    api_key: str = ""
    tenant: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        check_url(self.url)
        for option, value, low, high in (
            ("--rate", self.rate, 0.01, MAX_RATE),
            ("--duration", self.duration_s, 0.1, 86_400),
            ("--warmup", self.warmup_s, 0, 3600),
            ("--users", self.users, 1, 1_000_000),
            ("--history", self.history, 0, 1_048_576),
            ("--skew", self.skew, 0, 10),
            ("--candidates", self.candidates, 1, 1_048_576),
            ("--new-events", self.new_events, 0, 4096),
            ("--items", self.items, 1, 2**62),
            ("--lead-ms", self.lead_ms, 0, 600_000),
            ("--deadline-ms", self.deadline_ms, 1, 3_600_000),
            ("--timeout-ms", self.timeout_ms, 1, 3_600_000),
            ("--connections", self.connections, 1, 65_536),
            ("--seed", self.seed, 0, 2**63 - 1),
        ):
            if not low <= value <= high:
                raise ConfigError(option, f"{value} is outside [{low}, {high}]")
        if self.arrivals != POISSON and not Path(self.arrivals).is_file():
            raise ConfigError("--arrivals", f"{self.arrivals!r} is neither {POISSON!r} nor a file")
        for option, text in (("--api-key", self.api_key), ("--tenant", self.tenant)):
            if not text.isascii() or not text.isprintable():
                raise ConfigError(option, "must be printable ASCII")


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSpec:
    """What passes: `share` of all visits of a probe answered with the whole history within `slo_ms`.

    Attributes:
        resolution: the search ends when the passing and the failing rate are this close, as a share.
        most: probes at most.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    slo_ms: float = 50.0
    share: float = 0.99
    resolution: float = 0.05
    most: int = 24

    def __post_init__(self) -> None:
        for option, value, low, high in (
            ("--slo-ms", self.slo_ms, 0.1, 3_600_000),
            ("--slo-share", self.share, 0.01, 1),
            ("--slo-resolution", self.resolution, 0.001, 1),
            ("--slo-probes", self.most, 2, 1000),
        ):
            if not low <= value <= high:
                raise ConfigError(option, f"{value} is outside [{low}, {high}]")


def check_url(url: str) -> None:
    """Raise ConfigError unless `url` is http://HOST or https://HOST, with or without port and path."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigError("URL", f"{url!r}: {error}") from error
    if not known:
        raise ConfigError("URL", f"{url!r} must be http://HOST:PORT or https://HOST:PORT")


def check_tools() -> None:
    """Raise ConfigError, naming the extra, when load cannot be made."""
    for module in ("aiohttp", "hdrh"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError("bench", f"{module} is missing: install relaygr with its extra, relaygr[bench]")
