"""A virtual day of users who come back, through the books of both tiers, and what lies where after it."""

from __future__ import annotations

from dataclasses import dataclass

from cache_content import FP

from relaygr.cache.digests import DigestChain
from relaygr.cache.inclusive import InclusiveBooks
from relaygr.cache.interface import LoadPlan, StorePlan
from relaygr.cache.lease import WriteLease
from relaygr.cache.policies import make
from relaygr.cache.tiered import TieredBooks
from relaygr.core.ids import Tenant, UserId
from relaygr.core.state import Hit, Ref, Touch
from relaygr.sim.cache.generator import TraceSpec, generate

CHUNK = 1024
BOOKS: dict[str, type[TieredBooks]] = {"exclusive": TieredBooks, "inclusive": InclusiveBooks}


@dataclass(frozen=True)
class Day:
    """What was found in the host tier over the second half of the day.

    Attributes:
        runs: on average over time, stretches of host memory that an entry lies in.
        worst: the most at any of those times.
        free: share of the chunks that nobody had.
    """

    runs: float
    worst: float
    free: float
    loads: int
    stores: int
    evictions: int


def day(
    mode: str, policy: str, *, users: int, page_tokens: int, device: float, host: float, seed: int = 0
) -> Day:
    """Serve a generated day; `device` and `host` are shares of what all users take."""
    trace = generate(TraceSpec(users=users, scan=0.1, seed=seed))
    pages = max(-(-8192 // page_tokens), int(trace.base_tokens * device) // page_tokens)
    chunks = int(trace.base_tokens * host) // CHUNK
    books = BOOKS[mode](
        pages,
        page_tokens,
        page_tokens,
        1.0,
        host_bytes=chunks * CHUNK,
        run_chunk_tokens=CHUNK,
        policy=make(policy, chunks * CHUNK),
    )
    chains: dict[int, DigestChain] = {}
    means, free = [], []
    for place, (ms, user, length) in enumerate(
        zip(trace.time_ms.tolist(), trace.user.tolist(), trace.length.tolist(), strict=True)
    ):
        chain = chains.get(user)
        if chain is None:
            chain = chains[user] = DigestChain(Tenant("t"), FP, 3, UserId(str(user)), 0, page_tokens, 1)
        chain.extend(bytes(max(0, length - chain.tokens)))
        _visit(books, chain.ref(), ms / 1000, pages)
        if 2 * place > len(trace) and place % 50 == 0:
            tier = books.stats().host
            assert tier is not None
            means.append(tier.runs / max(1, tier.entries))
            free.append(tier.free_chunks / tier.total_chunks)
    books.audit()
    tier = books.stats().host
    assert tier is not None
    return Day(
        runs=sum(means) / len(means),
        worst=max(means),
        free=sum(free) / len(free),
        loads=tier.loads,
        stores=tier.stores,
        evictions=tier.evictions,
    )


def _visit(books: TieredBooks, ref: Ref, now_s: float, pages: int) -> None:
    """Load what the host has, compute the rest, and make room on the device, as serving does."""
    found = books.lookup(ref)
    books.touch(ref, Touch.HIT)
    if isinstance(found, Hit) and found.host > found.device_end:
        plan = books.prepare_load(ref, found.host, now_s, now_s + 1)
        if isinstance(plan, LoadPlan):
            assert books.complete_load(plan, ok=True)
    lease = books.append(ref, "rank", now_s, now_s + 1)
    if isinstance(lease, WriteLease):
        assert lease.publish(now_s)
        books.touch(ref, Touch.APPEND)
    for one in books.spill_candidates(pages * 15 // 100):
        store = books.prepare_store(one, one.tokens, now_s)
        if isinstance(store, StorePlan):
            assert books.complete_store(store, ok=True)
