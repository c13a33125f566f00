"""The settings of the relay: its switches and memory, the trigger, the router."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError
from relaygr.core.units import GIB


class RelayConfig(Section, frozen=True, kw_only=True):
    """Whether prefixes are encoded ahead of ranking, and what they may hold.

    Attributes:
        enabled: of this instance; off serves every request as the plain ranker does.
        disabled_builds: models that are served without the relay, by the first digits of their fingerprint.
        fallback_mode: what ranking does when a budget does not leave time for the whole history: `ladder`
            shortens it, `full` reads it anyway.
        reuse: keep what was computed for a user for the next request; off only where `enabled` is off, for
            measuring what it is good for.
        h_relay_share, h_relay_bytes: the bound on device bytes of live prefixes, as a share of
            `engine.device_bytes`, or in bytes if not 0.
        h_relay_split: `static` keeps that bound; `adaptive` moves it to where a miss costs less, between
            signals that find no room and visits that find their state gone.
        len_bucket_tokens: a shortened history is a multiple of this.
        epsilon_limit: largest difference between cached and uncached scores; `auto` is 1e-5 of the scores'
            scale in fp32, and measured when the model is loaded for other types.
        shadow_rate: share of hits that are scored again without the cache, at the lowest priority.
    """

    PATH: ClassVar[str] = "relay"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "h_relay_share": Range(0, 1, open_low=True),
        "h_relay_bytes": Range(0, 16 * 1024 * GIB),
        "len_bucket_tokens": Range(1, 1 << 20),
        "shadow_rate": Range(0, 1),
    }

    enabled: bool = True
    disabled_builds: tuple[str, ...] = ()
    fallback_mode: Literal["ladder", "full"] = "ladder"
    reuse: bool = True
    h_relay_share: float = 0.5
    h_relay_bytes: int = 0
    h_relay_split: Literal["static", "adaptive"] = "static"
    len_bucket_tokens: int = 128
    epsilon_limit: float | Literal["auto"] = "auto"
    shadow_rate: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon_limit != "auto":
            Range(0, 1e6, open_low=True).check(self.key("epsilon_limit"), self.epsilon_limit)
        if self.enabled and not self.reuse:
            raise ConfigError(self.key("reuse"), f"must be true where {self.key('enabled')} is")


class TriggerConfig(Section, frozen=True, kw_only=True):
    """Which prefix signals are admitted.

    Attributes:
        admit_all: admit every signal that fits in memory; for measuring what the trigger is good for.
        hysteresis: a request turns safe this share below the budget at which it turned risky.
        seq_at_risk_min_tokens: shorter prefixes are never at risk.
        metadata_max_age_s: older lengths are not believed.
        lead_quantile: of the measured lead times, the one that a pre-inference must meet.
        u_max: share of the model's time that ranking and pre-inference may take together.
        model_slots: passes that run at once; 0 is 1 on a CPU and 2 on an accelerator.
        pre_rate_per_s: cap on admitted signals a second; 0 is none.
        pre_burst: admitted signals at once.
        key_inflight_max: requests of one user on their way.
        candidates_default: expected candidates of a signal that names none, until some were ranked.
    """

    PATH: ClassVar[str] = "trigger"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "hysteresis": Range(0, 0.9),
        "seq_at_risk_min_tokens": Range(0, 1 << 20),
        "metadata_max_age_s": Range(0, 86_400, open_low=True),
        "lead_quantile": Range(0, 1),
        "u_max": Range(0, 0.99, open_low=True),
        "model_slots": Range(0, 1024),
        "pre_rate_per_s": Range(0, 1e6),
        "pre_burst": Range(1, 65_536),
        "key_inflight_max": Range(1, 65_536),
        "candidates_default": Range(0, 1_048_576),
    }

    admit_all: bool = False
    hysteresis: float = 0.05
    seq_at_risk_min_tokens: int = 512
    metadata_max_age_s: float = 60.0
    lead_quantile: float = 0.9
    u_max: float = 0.95
    model_slots: int = 0
    pre_rate_per_s: float = 0.0
    pre_burst: int = 8
    key_inflight_max: int = 8
    candidates_default: int = 256


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An instance that requests can be sent to.

    Attributes:
        id: printable ASCII without blanks: headers carry it.
        url: http or https, without a path.
        weight: its share of the users, compared with the others'.
    """

    id: str
    url: str
    weight: float = 1.0

    def check(self, path: str) -> None:
        """Raise ConfigError, naming the key under `path`, if no request could be sent to it."""
        if not re.fullmatch(r"[!-~]{1,64}", self.id):
            raise ConfigError(f"{path}.id", f"{self.id!r} must be 1 to 64 printable ASCII characters")
        if not re.fullmatch(r"https?://[^/?#\s]+/?", self.url):
            raise ConfigError(f"{path}.url", f"{self.url!r} must be http://HOST:PORT without a path")
        Range(0, 1e6, open_low=True).check(f"{path}.weight", self.weight)


class RouterConfig(Section, frozen=True, kw_only=True):
    """Which instance serves which user.

    Attributes:
        self_id: the member that this process is; empty for a gateway, which is none of them.
        members: the instances; empty serves alone.
        hash: `blake2b` follows the published vectors; `mix64` is as even and much cheaper for hundreds of
            members. All routers of a fleet must use the same, and changing it moves every user.
        random_owner: send every lap to any member; for measuring what affinity is good for.
        special_share: share of the members that relay; the others only rank.
        load_factor: a new user avoids members with more than this times the mean load.
        placement_ttl_s, placement_max: how long and how many users' placements are remembered.
        ramp_s: in which a new member's weight grows from a tenth to all of it.
        feedback_max_age_s: a member whose last word is older gets no pre-inference.
        load_limit: nor does one on which so many rankings and prefixes wait or run; it still ranks.
        poll_s: how often members are asked how they are.
        down_after: failed polls in a row after which a member counts as down.
        connect_ms: longest wait for a connection to a member.
        connections: most connections to one member.
    """

    PATH: ClassVar[str] = "router"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "special_share": Range(0, 1, open_low=True),
        "load_factor": Range(1, 100),
        "placement_ttl_s": Range(0, 604_800),
        "placement_max": Range(1, 100_000_000),
        "ramp_s": Range(0, 86_400),
        "feedback_max_age_s": Range(0, 3600, open_low=True),
        "load_limit": Range(1, 1 << 20),
        "poll_s": Range(0, 3600, open_low=True),
        "down_after": Range(1, 1000),
        "connect_ms": Range(1, 600_000),
        "connections": Range(1, 65_536),
    }

    self_id: str = ""
    members: tuple[Member, ...] = ()
    hash: Literal["blake2b", "mix64"] = "blake2b"
    random_owner: bool = False
    special_share: float = 1.0
    load_factor: float = 1.25
    placement_ttl_s: float = 600.0
    placement_max: int = 1_000_000
    ramp_s: float = 60.0
    feedback_max_age_s: float = 2.0
    load_limit: int = 128
    poll_s: float = 0.5
    down_after: int = 2
    connect_ms: float = 250.0
    connections: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        ids: set[str] = set()
        urls: set[str] = set()
        for place, member in enumerate(self.members):
            path = self.key(f"members[{place}]")
            member.check(path)
            if member.id in ids:
                raise ConfigError(f"{path}.id", f"{member.id!r} is there twice")
            if member.url.rstrip("/") in urls:
                raise ConfigError(f"{path}.url", f"{member.url!r} is there twice")
            ids.add(member.id)
            urls.add(member.url.rstrip("/"))
        if self.self_id and self.self_id not in ids:
            raise ConfigError(self.key("self_id"), f"{self.self_id!r} is no id of {self.key('members')}")
