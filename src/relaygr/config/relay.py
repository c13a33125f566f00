"""The settings of the relay: its switches and memory, the trigger, the host tier, the router."""

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


PolicyName = Literal[
    "gd_cost",
    "lru",
    "slru",
    "s3fifo",
    "sieve",
    "lru2",
    "arc",
    "lirs",
    "wtinylfu",
    "gdsf",
    "gdsf_cost",
    "tlru",
]


class HostConfig(Section, frozen=True, kw_only=True):
    """The tier of user states in host memory, and the copies between it and the device.

    Attributes:
        host_bytes: what it may take; 0 turns it off.
        run_chunk_tokens: its unit of allocation, a multiple of `engine.page_tokens`.
        clean_target: share of the device pages that spilling keeps free.
        d_ttl_s: two requests of a user within this time count as a return.
        reload_slots: reloads at once.
        reload_bytes_per_s: cap on reloads; 0 goes by the measured speed.
        spill_min_reuse: states of users who return less likely than this are dropped, not spilled.
        spill_queue_max: spills that wait.
        checksum_share: of the pages of a state, how many are checked when it is reloaded; 0 checks none.
        host_dtype: of the states in it; `same` keeps the device's bytes. Others hold more users, and answers
            that rest on them say so: their scores differ by the drift of the format.
        quant_scale: who shares a scale in `int8` and `fp8`. A `page_head` would be rounded anew with every
            token that is added, so that a state that is spilled again and again would drift.
        drift_limit: a format is refused if it moves a probability of the served model further than this.
        copy_threads: that copy beside ranking; 0 copies on its thread, before it.
        staging_tokens: rows of a staging buffer, where the device is not ordinary memory.
        store_timeout_ms: longest time of a copy to host memory.
        fail_mode: `open` computes anew what could not be copied, `closed` answers with an error instead.
        tier_mode: `exclusive` keeps a state in one tier, `inclusive` leaves it in host memory when the device
            has it, too; `auto` is exclusive where the device is the processor, whose memory is the host's.
        policy_host: which states leave it when there is no room; `relaygr cache curve` compares them.
        first_touch_weight, freq_cap: of `gd_cost`: what a state is worth after one visit, and at most.
        ghost_entries: states that are gone and whose visits still count.
        ghost_halve_ops: counted visits are halved each time so many have come.
        shadow_policies, shadow_share: policies tried beside it on the keys of this share of the users;
            metrics say what each would have saved.
        disk_bytes: what the tier below, on disk, may take; 0 turns it off.
        disk_path: its folder, which belongs to one process at a time. Users who are deleted while it is not
            in use stay in it, so that it is to be emptied before it is used again; so with `snapshot_path`.
        disk_index_bytes: memory for knowing what is on disk; with more on disk than that, the oldest leaves.
        snapshot_path: a file that the host tier is written to when the service stops, and is read from, and
            removed, when it starts; empty keeps nothing.
    """

    PATH: ClassVar[str] = "host"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "host_bytes": Range(0, 16 * 1024 * GIB),
        "run_chunk_tokens": Range(8, 1 << 20),
        "clean_target": Range(0, 0.9),
        "d_ttl_s": Range(0, 604_800),
        "reload_slots": Range(1, 1024),
        "reload_bytes_per_s": Range(0, 1e13),
        "spill_min_reuse": Range(0, 1),
        "spill_queue_max": Range(1, 65_536),
        "checksum_share": Range(0, 1),
        "drift_limit": Range(0, 1, open_low=True),
        "copy_threads": Range(0, 64),
        "staging_tokens": Range(8, 1 << 20),
        "store_timeout_ms": Range(1, 600_000),
        "first_touch_weight": Range(0, 1000, open_low=True),
        "freq_cap": Range(1, 1000),
        "ghost_entries": Range(0, 100_000_000),
        "ghost_halve_ops": Range(1, 1_000_000_000),
        "shadow_share": Range(0, 1, open_low=True),
        "disk_bytes": Range(0, 1024 * 1024 * GIB),
        "disk_index_bytes": Range(1 << 16, 1024 * GIB),
    }

    host_bytes: int = GIB
    run_chunk_tokens: int = 1024
    clean_target: float = 0.15
    d_ttl_s: float = 600.0
    reload_slots: int = 2
    reload_bytes_per_s: float = 0.0
    spill_min_reuse: float = 0.2
    spill_queue_max: int = 64
    checksum_share: float = 0.01
    host_dtype: Literal["same", "bf16", "int8", "fp8"] = "same"
    quant_scale: Literal["token_head", "page_head"] = "token_head"
    drift_limit: float = 0.01
    copy_threads: int = 1
    staging_tokens: int = 8192
    store_timeout_ms: float = 1000.0
    fail_mode: Literal["open", "closed"] = "open"
    tier_mode: Literal["auto", "exclusive", "inclusive"] = "auto"
    policy_host: PolicyName = "gd_cost"
    first_touch_weight: float = 0.5
    freq_cap: int = 4
    ghost_entries: int = 131_072
    ghost_halve_ops: int = 200_000
    shadow_policies: tuple[PolicyName, ...] = ()
    shadow_share: float = 0.02
    disk_bytes: int = 0
    disk_path: str = ""
    disk_index_bytes: int = GIB // 4
    snapshot_path: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("disk_path", "snapshot_path"):
            if "\0" in getattr(self, name):
                raise ConfigError(self.key(name), f"{getattr(self, name)!r} contains NUL")
        if self.disk_bytes and not self.disk_path:
            raise ConfigError(
                self.key("disk_path"), f"is empty; {self.disk_bytes} {self.key('disk_bytes')} need a folder"
            )
        for name in ("disk_bytes", "snapshot_path"):
            if getattr(self, name) and not self.host_bytes:
                raise ConfigError(
                    self.key(name),
                    f"{getattr(self, name)!r} needs a host tier: {self.key('host_bytes')} is 0",
                )
        if self.quant_scale != "token_head":
            message = f"{self.quant_scale!r} would drift with every spill; must be 'token_head'"
            raise ConfigError(self.key("quant_scale"), message)


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
