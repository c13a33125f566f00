"""The tiers of user states below the device: host memory, disk, and the copies between them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import ClassVar, Literal

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError
from relaygr.core.units import GIB

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
        load: `measured` copies for a ranking what is quicker copied than computed; `always` all there is.
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
    load: Literal["measured", "always"] = "measured"
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
        if self.snapshot_path and not PurePath(self.snapshot_path).name.strip("."):
            raise ConfigError(self.key("snapshot_path"), f"{self.snapshot_path!r} must name a file")
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
        if len(set(self.shadow_policies)) < len(self.shadow_policies):
            raise ConfigError(self.key("shadow_policies"), f"{self.shadow_policies!r} names one twice")
        if self.quant_scale != "token_head":
            message = f"{self.quant_scale!r} would drift with every spill; must be 'token_head'"
            raise ConfigError(self.key("quant_scale"), message)
