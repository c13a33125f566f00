"""What the books of a cache cost on one core, for a batch of users: lookup, choice, room and plan."""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from relaygr.cache.chooser import Chooser, Found
from relaygr.cache.digests import DigestChain
from relaygr.cache.interface import LoadPlan, StorePlan
from relaygr.cache.lease import WriteLease
from relaygr.cache.speeds import Compute, Link, MeasuredCompute, MeasuredLink, Part
from relaygr.cache.tiered import TieredBooks
from relaygr.core.errors import BackendError, ConfigError
from relaygr.core.ids import Fingerprint, Tenant, UserId
from relaygr.core.state import Hit, Ref
from relaygr.core.units import KIB

TARGET_US = 100.0
_RECORD_BYTES = 32
_FAR_S = 1e9
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSpec:
    """Users who come back in turn, a batch at a time; the device holds two batches, the host all of them.

    Attributes:
        tokens: of a history at first; new_tokens: that each visit adds.
        batch: users of one batch; users: in all; visits: of each user, at least one.

    Raises:
        ConfigError: naming the option, the value and the limit.
    """

    tokens: int = 2048
    new_tokens: int = 16
    batch: int = 64
    users: int = 256
    visits: int = 6
    page_tokens: int = 32
    run_chunk_tokens: int = 1024

    def __post_init__(self) -> None:
        for name, low, high in (
            ("tokens", 1, 1 << 20),
            ("new_tokens", 1, 65_536),
            ("batch", 1, 4096),
            ("users", self.batch, 1 << 20),
            ("visits", 1, 1000),
            ("page_tokens", 1, 4096),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"control.{name}", f"{value} is outside [{low}, {high}]")
        if self.run_chunk_tokens % self.page_tokens:
            raise ConfigError(
                "control.run_chunk_tokens",
                f"{self.run_chunk_tokens} must be a multiple of {self.page_tokens}, a page",
            )


class ControlStep(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds of one step of one user: median and P99 over all users of all batches."""

    name: str
    median_us: float
    p99_us: float


class ControlReport(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds a user, digests precomputed.

    Attributes:
        host_hit_us: lookup, choice, plan of the copy with its room on the device, and room for new tokens.
        device_hit_us: lookup, and room for new tokens.
        steps: those, and what follows when the bytes are there.
        samples: users behind each median.
    """

    batch: int
    tokens: int
    new_tokens: int
    page_tokens: int
    target_us: float
    host_hit_us: float
    device_hit_us: float
    steps: list[ControlStep]
    samples: int


def bench_control(spec: ControlSpec) -> ControlReport:
    """Run the batches on the calling thread.

    Raises:
        BackendError: the books said no where they should not have.
    """
    run = _Run(spec)
    for visit in range(1, spec.visits + 1):
        for first in range(0, spec.users, spec.batch):
            run.batch(range(first, min(first + spec.batch, spec.users)), visit)
    return run.report()


class _Run:
    def __init__(self, spec: ControlSpec) -> None:
        self._spec = spec
        longest = spec.tokens + (2 * spec.visits + 1) * spec.new_tokens
        pages = -(-longest // spec.page_tokens) + 1
        chunk_bytes = 4 * KIB * spec.run_chunk_tokens
        chunks = -(-longest // spec.run_chunk_tokens)
        self._books = TieredBooks(
            2 * spec.batch * pages,
            spec.page_tokens,
            4 * KIB * spec.page_tokens,
            1.0,
            host_bytes=(spec.users + spec.batch) * (chunks + 1) * chunk_bytes,
            run_chunk_tokens=spec.run_chunk_tokens,
            store_timeout_s=_FAR_S,
        )
        compute = MeasuredCompute(Compute(0.01, 1e-5))
        compute.observe([Part(spec.tokens, 0, 0)], 1.0 * spec.tokens)
        self._chooser = Chooser(MeasuredLink(Link(2e9)), compute)
        self._refs = [_refs(spec, user) for user in range(spec.users)]
        self._us: dict[str, list[float]] = {}
        self._host_us: list[float] = []
        self._device_us: list[float] = []
        for refs in self._refs:
            self._write(refs[0])
            self._store(refs[0])

    def batch(self, users: range, visit: int) -> None:
        """Users whose state the host has come back; once more, when the device has it; then it is spilled."""
        plans = [self._load(self._refs[user][2 * visit - 1]) for user in users]
        leases = []
        for user, (plan, spent) in zip(users, plans, strict=True):
            self._timed("complete_load", partial(self._books.complete_load, plan, ok=True))
            lease, more = self._room(self._refs[user][2 * visit - 1])
            self._host_us.append(spent + more)
            leases.append(lease)
        self._publish(leases)
        leases = []
        for user in users:
            ref = self._refs[user][2 * visit]
            _, spent = self._timed("lookup", partial(self._books.lookup, ref))
            lease, more = self._room(ref)
            self._device_us.append(spent + more)
            leases.append(lease)
        self._publish(leases)
        for user in users:
            self._store(self._refs[user][2 * visit])

    def report(self) -> ControlReport:
        spec = self._spec
        return ControlReport(
            batch=spec.batch,
            tokens=spec.tokens,
            new_tokens=spec.new_tokens,
            page_tokens=spec.page_tokens,
            target_us=TARGET_US,
            host_hit_us=statistics.median(self._host_us),
            device_hit_us=statistics.median(self._device_us),
            steps=[
                ControlStep(name=name, median_us=statistics.median(us), p99_us=_p99(us))
                for name, us in self._us.items()
            ],
            samples=len(self._host_us),
        )

    def _load(self, ref: Ref) -> tuple[LoadPlan, float]:
        spec, books = self._spec, self._books
        answer, spent = self._timed("lookup", partial(books.lookup, ref))
        found = answer if isinstance(answer, Hit) else Hit(0, 0, 0, 0, 0)
        asked = Found(ref.tokens, found.device_end, found.host, 128, 4 * KIB, spec.page_tokens)
        choice, chose = self._timed("choose", partial(self._chooser.choose, asked))
        plan, planned = self._timed(
            "prepare_load", partial(books.prepare_load, ref, choice.tokens, 0.0, _FAR_S)
        )
        if not isinstance(plan, LoadPlan):
            raise BackendError(f"no load of {choice.tokens} tokens: {plan.reason}")
        return plan, spent + chose + planned

    def _room(self, ref: Ref) -> tuple[WriteLease, float]:
        lease, spent = self._timed("append", partial(self._books.append, ref, "bench", 0.0, _FAR_S))
        if not isinstance(lease, WriteLease):
            raise BackendError(f"no room for {ref.tokens} tokens: {lease.reason}")
        return lease, spent

    def _publish(self, leases: list[WriteLease]) -> None:
        for lease in leases:
            self._timed("publish", partial(lease.publish, 0.0))

    def _write(self, ref: Ref) -> None:
        lease = self._books.append(ref, "bench", 0.0, _FAR_S)
        if not isinstance(lease, WriteLease):
            raise BackendError(f"no room for {ref.tokens} tokens: {lease.reason}")
        lease.publish(0.0)

    def _store(self, ref: Ref) -> None:
        plan, _ = self._timed("prepare_store", partial(self._books.prepare_store, ref, ref.tokens, 0.0))
        if not isinstance(plan, StorePlan):
            raise BackendError(f"no store of {ref.tokens} tokens: {plan.reason}")
        self._timed("complete_store", partial(self._books.complete_store, plan, ok=True))

    def _timed(self, name: str, call: Callable[[], _Result]) -> tuple[_Result, float]:
        began = time.perf_counter_ns()
        result = call()
        us = (time.perf_counter_ns() - began) / 1000
        self._us.setdefault(name, []).append(us)
        return result, us


def _refs(spec: ControlSpec, user: int) -> list[Ref]:
    """The user's prefix at first, and after each addition."""
    chain = DigestChain(
        Tenant("bench"), Fingerprint(bytes(16)), 1, UserId(f"u{user}"), 0, spec.page_tokens, _RECORD_BYTES
    )
    chain.extend(_records(user, 0, spec.tokens))
    refs = [chain.ref()]
    for _ in range(2 * spec.visits):
        chain.extend(_records(user, chain.tokens, spec.new_tokens))
        refs.append(chain.ref())
    return refs


def _records(user: int, first: int, count: int) -> bytes:
    return b"".join(
        struct.pack("<4q", user * 7919 + token, 60 * token, 1, 0) for token in range(first, first + count)
    )


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]
