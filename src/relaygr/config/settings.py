"""The settings of the engine, of training and of the history store, with their defaults and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from relaygr.config.generator import GeneratorConfig
from relaygr.config.host import HostConfig
from relaygr.config.limits import Range, Section
from relaygr.config.ray import RayConfig
from relaygr.config.relay import RelayConfig, RouterConfig, TriggerConfig
from relaygr.config.slate import SlateConfig
from relaygr.config.stream import StreamConfig
from relaygr.config.train_generator import TrainGeneratorConfig
from relaygr.core.errors import ConfigError
from relaygr.core.units import GIB, MIB

MAX_BUDGET_MS = 3_600_000
AutoMs = float | Literal["auto"]


class EngineConfig(Section, frozen=True, kw_only=True):
    """How one engine instance uses its device.

    Attributes:
        page_tokens: tokens in one page of the entry pool.
        device_bytes: what the entry pool may take of the device; sources may say "512MiB".
        microbatch: candidates scored by one kernel call.
        threads: compute threads of the process; 0 leaves one core to the event loop.
        bitwise: trade speed for results that do not depend on how requests were batched.
        lease_ttl_ms: after this long without a release a lease counts as lost.
        anchor_stride: share of a prefix that may fall off its old end before the prefix is re-anchored.
    """

    PATH: ClassVar[str] = "engine"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "page_tokens": Range(8, 256, power_of_two=True),
        "device_bytes": Range(MIB, 16 * 1024 * GIB),
        "microbatch": Range(1, 65536),
        "threads": Range(0, 1024),
        "lease_ttl_ms": Range(1, 600_000),
        "max_candidates": Range(1, 1_048_576),
        "max_batch_requests": Range(1, 4096),
        "anchor_stride": Range(0, 1, open_low=True),
    }

    page_tokens: int = 32
    device_bytes: int = 2 * GIB
    microbatch: int = 512
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    kernel: Literal["auto", "cpu", "reference"] = "auto"
    threads: int = 0
    bitwise: bool = False
    lease_ttl_ms: int = 60_000
    max_candidates: int = 16384
    max_batch_requests: int = 64
    anchor_stride: float = 0.25


class SchedulerConfig(Section, frozen=True, kw_only=True):
    """How requests wait for the engine.

    Attributes:
        rank_batch_max: requests of one batch.
        rank_batch_tokens: history tokens that one batch computes at most, if it has more than one request.
        rank_batch_wait_ms: how long an idle engine waits for batch mates; 0 never waits.
        rank_queue_max, prefix_queue_max: waiting requests; further ones are refused.
        rank_deadline_ms, prefix_deadline_ms: of requests that name none.
        deadline_max_ms: longest deadline a request may name.
        chunk_tokens: history tokens of one step of a prefetch; 0 follows the latency model.
    """

    PATH: ClassVar[str] = "scheduler"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "rank_batch_max": Range(1, 4096),
        "rank_batch_tokens": Range(1, 1 << 20),
        "rank_batch_wait_ms": Range(0, 1000),
        "rank_queue_max": Range(1, 1 << 20),
        "prefix_queue_max": Range(0, 1 << 20),
        "rank_deadline_ms": Range(1, 3_600_000),
        "prefix_deadline_ms": Range(1, 3_600_000),
        "deadline_max_ms": Range(1, 3_600_000),
        "chunk_tokens": Range(0, 1 << 20),
    }

    rank_batch_max: int = 16
    rank_batch_tokens: int = 512
    rank_batch_wait_ms: float = 0.0
    rank_queue_max: int = 256
    prefix_queue_max: int = 256
    rank_deadline_ms: float = 10_000.0
    prefix_deadline_ms: float = 10_000.0
    deadline_max_ms: float = 60_000.0
    chunk_tokens: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rank_deadline_ms", "prefix_deadline_ms"):
            value = getattr(self, name)
            if value > self.deadline_max_ms:
                limit = f"at most {self.key('deadline_max_ms')} = {self.deadline_max_ms:g}"
                raise ConfigError(self.key(name), f"{value:g} must be {limit}")


class BudgetConfig(Section, frozen=True, kw_only=True):
    """What each stage of a request may take; `auto` follows the speed of the machine (`relaygr calibrate`).

    Attributes:
        b_pipe_ms: a request, from its trigger to its answer.
        b_rank_ms: ranking, at P99.
        guard_ms: kept back from every prediction.
        lead_default_ms, lead_p99_ms: from the trigger to ranking, until measured; and at P99.
        rank_wait_cap_ms: how long ranking waits for a prefix; `auto` leaves time for the hit.
        chunk_ms: one step of a pre-inference; one page where a page takes longer.
        t_life_ms: how long a prefix is held for its ranking; 0 follows measurement.
        t_life_slack_ms: added to the measured time.
        drain_ms: how long a stopping server serves what it holds; `auto` is t_life_ms.
    """

    PATH: ClassVar[str] = "budgets"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "b_pipe_ms": Range(0, MAX_BUDGET_MS, open_low=True),
        "b_rank_ms": Range(0, MAX_BUDGET_MS, open_low=True),
        "guard_ms": Range(0, MAX_BUDGET_MS),
        "lead_default_ms": Range(0, MAX_BUDGET_MS),
        "lead_p99_ms": Range(0, MAX_BUDGET_MS),
        "rank_wait_cap_ms": Range(0, MAX_BUDGET_MS),
        "chunk_ms": Range(0, MAX_BUDGET_MS, open_low=True),
        "t_life_ms": Range(0, MAX_BUDGET_MS),
        "t_life_slack_ms": Range(0, MAX_BUDGET_MS),
        "drain_ms": Range(0, MAX_BUDGET_MS),
    }

    b_pipe_ms: AutoMs = "auto"
    b_rank_ms: AutoMs = "auto"
    guard_ms: AutoMs = "auto"
    lead_default_ms: AutoMs = "auto"
    lead_p99_ms: AutoMs = "auto"
    rank_wait_cap_ms: AutoMs = "auto"
    chunk_ms: AutoMs = "auto"
    t_life_ms: AutoMs = "auto"
    t_life_slack_ms: float = 50.0
    drain_ms: AutoMs = "auto"

    @classmethod
    def check(cls, name: str, value: Any, origin: str = "") -> None:
        if value != "auto":
            super().check(name, value, origin)


class TrainConfig(Section, frozen=True, kw_only=True):
    """How a model is trained; training ends at the first limit that is reached.

    Attributes:
        max_minutes: wall-clock limit.
        max_steps: optimiser steps; 0 is no limit.
        batch_users: most windows (runs of one user's events) in one step.
        batch_rows: no further window is added to a step that has so many rows, events and candidates.
        cuts: most points in time of one window that are trained on at once.
        negatives: sampled items scored against the positives of each cut.
        min_history, max_history: events of a window, drawn uniformly.
        half_life: share of the training time after which an example is drawn half as often.
        lr, table_lr: of the dense weights and of the item table.
        scaling_seqlen: the attention divisor that the model gets, instead of its preset's.
        last_seen: give candidates the age of their item's last event in the user's history.
        score_time_bias: give the model a score bias by the age of a history token at query time.
        warmup_steps: steps over which `lr` rises from 0.
        clip_norm: limit on the norm of the gradient.
        eval_every_steps, eval_requests: how often, and on how many validation requests, quality is measured.
        patience: evaluations without improvement before training stops; 0 never stops early.
    """

    PATH: ClassVar[str] = "train"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "max_minutes": Range(0, 10_080, open_low=True),
        "max_steps": Range(0, 100_000_000),
        "batch_users": Range(1, 65536),
        "batch_rows": Range(1, 16_777_216),
        "cuts": Range(1, 65536),
        "lr": Range(0, 10, open_low=True),
        "table_lr": Range(0, 10, open_low=True),
        "weight_decay": Range(0, 10),
        "warmup_steps": Range(0, 1_000_000),
        "clip_norm": Range(0, 1000, open_low=True),
        "negatives": Range(1, 65536),
        "min_history": Range(1, 65536),
        "max_history": Range(2, 65536),
        "half_life": Range(0, 1e9, open_low=True),
        "scaling_seqlen": Range(1, 1_048_576),
        "eval_every_steps": Range(1, 1_000_000),
        "eval_requests": Range(1, 1_000_000),
        "patience": Range(0, 1000),
        "seed": Range(0, 2**63 - 1),
    }

    max_minutes: float = 3.0
    max_steps: int = 0
    batch_users: int = 32
    batch_rows: int = 8192
    cuts: int = 16
    lr: float = 6e-3
    table_lr: float = 0.1
    weight_decay: float = 0.01
    warmup_steps: int = 50
    clip_norm: float = 1.0
    negatives: int = 48
    min_history: int = 64
    max_history: int = 512
    half_life: float = 0.1
    scaling_seqlen: int = 8
    score_time_bias: bool = True
    last_seen: bool = True
    eval_every_steps: int = 200
    eval_requests: int = 500
    patience: int = 4
    seed: int = 0


class StoreConfig(Section, frozen=True, kw_only=True):
    """Where users' histories are kept, how much of them, and what a crash of the machine may lose.

    Attributes:
        url: `sqlite:///FILE`, `lmdb:///FOLDER` (relative; four slashes begin an absolute path),
            `sqlite://memory`, or `redis://HOST:PORT/DB`.
        synchronous: "normal" leaves the last step to the operating system: a power cut may undo the newest
            appends; "full" waits for the disk at every commit. Neither loses anything when the process is
            killed. A Redis server follows its own `appendfsync` instead.
        keep_events: newest events kept of each user; older ones are dropped, sequence numbers go on.
        dedupe_events: an event is a duplicate if it equals one of so many accepted before it.
        keys_per_user: newest idempotency keys remembered of each user.
        timeout_ms: longest wait for another process's lock (SQLite) or for the server (Redis).
        map_bytes: most an LMDB store may hold; address space, taken from the disk only as it fills.
    """

    PATH: ClassVar[str] = "store"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "keep_events": Range(1, 16_777_216),
        "dedupe_events": Range(0, 4096),
        "keys_per_user": Range(1, 4096),
        "timeout_ms": Range(1, 600_000),
        "map_bytes": Range(MIB, 16 * 1024 * GIB),
    }

    url: str = "sqlite:///relaygr-history.db"
    synchronous: Literal["normal", "full"] = "normal"
    keep_events: int = 65_536
    dedupe_events: int = 64
    keys_per_user: int = 64
    timeout_ms: int = 5000
    map_bytes: int = 64 * GIB


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may call: the holder of `key` is `tenant`; only with `admin` may it reload models."""

    key: str
    tenant: str = "default"
    admin: bool = False


class ServingConfig(Section, frozen=True, kw_only=True):
    """The HTTP service.

    Attributes:
        model: folder of the ranker; empty serves `preset` with random weights.
        name: what the model is called in URLs.
        host, port: where to listen; port 0 takes a free one.
        body_limit_bytes: largest body of a request.
        body_timeout_s: longest a client may take to send a body.
        max_candidates, max_history: of one request; the model's own limits hold as well.
        history_events: newest stored events that ranking reads; 0 reads as many as the model does.
        users_bytes: memory for histories that are kept between requests.
        requests_max: requests in progress at once; further ones get 503.
        tenant_requests_max: of one tenant; further ones get 429. 0 sets no limit.
        keep_alive_s: how long an idle connection stays open.
        drain_delay_s: how long a stopping server says that it is not ready before it refuses work.
        drain_s: how long a stopping server finishes what it has; then it leaves.
        calibrate_s: time for measuring the speed of a model when it is loaded; 0 measures nothing, and then
            no history is shortened to meet a deadline.
        calibration: a file of `relaygr calibrate`, read instead if it is of this model, build and machine,
            and otherwise written; empty keeps nothing.
        log_level: lines of the log from this level on.
        log_personal: whether the log may name users and items.
        traces: whether spans are sent to an OpenTelemetry collector (the extra `otel`).
        keys: who may call; empty lets everyone in, and the header `x-tenant` names the tenant.
    """

    PATH: ClassVar[str] = "serving"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "port": Range(0, 65535),
        "body_limit_bytes": Range(1024, GIB),
        "body_timeout_s": Range(0, 3600, open_low=True),
        "max_candidates": Range(1, 1_048_576),
        "max_history": Range(1, 1_048_576),
        "history_events": Range(0, 1_048_576),
        "users_bytes": Range(0, 1024 * GIB),
        "requests_max": Range(1, 1 << 20),
        "tenant_requests_max": Range(0, 1 << 20),
        "keep_alive_s": Range(1, 86_400),
        "drain_delay_s": Range(0, 3600),
        "drain_s": Range(0, 3600),
        "calibrate_s": Range(0, 600),
    }

    model: str = ""
    preset: str = "hstu-tiny"
    name: str = "ranker"
    host: str = "127.0.0.1"
    port: int = 8080
    body_limit_bytes: int = 8 * MIB
    body_timeout_s: float = 10.0
    max_candidates: int = 16384
    max_history: int = 65536
    history_events: int = 0
    users_bytes: int = 256 * MIB
    requests_max: int = 512
    tenant_requests_max: int = 0
    keep_alive_s: int = 75
    drain_delay_s: float = 0.0
    drain_s: float = 20.0
    calibrate_s: float = 2.0
    calibration: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_personal: bool = False
    traces: bool = False
    keys: tuple[ApiKey, ...] = ()


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting; `relaygr.config.load.load_config` builds it from its sources."""

    engine: EngineConfig = EngineConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    budgets: BudgetConfig = BudgetConfig()
    relay: RelayConfig = RelayConfig()
    trigger: TriggerConfig = TriggerConfig()
    host: HostConfig = HostConfig()
    router: RouterConfig = RouterConfig()
    train: TrainConfig = TrainConfig()
    train_generator: TrainGeneratorConfig = TrainGeneratorConfig()
    store: StoreConfig = StoreConfig()
    serving: ServingConfig = ServingConfig()
    generator: GeneratorConfig = GeneratorConfig()
    slate: SlateConfig = SlateConfig()
    stream: StreamConfig = StreamConfig()
    ray: RayConfig = RayConfig()
