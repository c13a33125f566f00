"""Whether a prefix is worth computing ahead of ranking, from lengths and loads alone; the reason is named."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from enum import StrEnum

import msgspec

from relaygr.config.relay import TriggerConfig
from relaygr.relay.budgets import Budgets
from relaygr.relay.latency import Chunks, LatencyModel
from relaygr.relay.waits import inline_wait_ms

_RISKS_REMEMBERED = 4096
_LONGEST_TOKENS = 1 << 31


class Reason(StrEnum):
    """Of a decision; refusals in the order of the tests, the first that fails is the reason."""

    ADMITTED = "admitted"
    DISABLED = "disabled"
    METADATA = "metadata"
    NOT_REUSABLE = "not_reusable"
    NOT_AT_RISK = "not_at_risk"
    NO_BENEFIT = "no_benefit"
    TOO_LATE = "too_late"
    HOT_KEY = "hot_key"
    NO_INSTANCE = "no_instance"
    FOOTPRINT = "footprint"
    RATE = "rate"
    LOAD = "load"


class Meta(msgspec.Struct, frozen=True):
    """What is known of a request before retrieval; never the history itself.

    Attributes:
        key: of the user.
        build: name of the model build.
        prefix_tokens, suffix_tokens, candidates: l, m and c; None where unknown.
        age_s: of the lengths.
        cached_tokens: of the prefix, those that need not be computed.
    """

    key: str
    build: str
    prefix_tokens: int | None
    suffix_tokens: int | None
    candidates: int | None
    age_s: float = 0.0
    cached_tokens: int = 0


class Build(msgspec.Struct, frozen=True):
    """A model build as the trigger sees it.

    Attributes:
        name: of the build.
        enabled: the relay is on for it.
        cacheable: `append`, `request` or `none`; only prefixes that hold for all later requests are reused.
        latency, chunks, budgets: None where speed was never measured; then risk and time are not asked for.
    """

    name: str
    enabled: bool = True
    cacheable: str = "append"
    latency: LatencyModel | None = None
    chunks: Chunks | None = None
    budgets: Budgets | None = None


class Owner(msgspec.Struct, frozen=True):
    """The instance that both laps of the request would use.

    Attributes:
        active: it takes pre-inference.
        feedback_age_s: since its last word.
        pre_wait_ms: until its queue reaches a new pre-inference.
        rank_share: share of its model slots that ranking takes; chunks yield to it.
        rank_rate_per_s: rankings that arrive at one of its slots.
        key_inflight: requests of the same user on their way.
    """

    active: bool
    feedback_age_s: float = 0.0
    pre_wait_ms: float = 0.0
    rank_share: float = 0.0
    rank_rate_per_s: float = 0.0
    key_inflight: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """The decision and the times it rests on, in milliseconds; None where not asked for.

    Attributes:
        reason: ADMITTED or the first test that failed.
        full_p99_ms, hit_p99_ms: the P99 of ranking without and with the prefix.
        pre_ms: of the pre-inference, its usual time; in one piece where even that is too late.
    """

    reason: Reason
    full_p99_ms: float | None = None
    hit_p99_ms: float | None = None
    pre_ms: float | None = None

    @property
    def admitted(self) -> bool:
        return self.reason is Reason.ADMITTED

    def but(self, reason: Reason) -> Verdict:
        """The same times, with the reason of a later test."""
        return Verdict(reason, self.full_p99_ms, self.hit_p99_ms, self.pre_ms)


class Trigger:
    """The tests that need no reservation; what they pass, `Gate.admit` decides.

    Changes: only which (build, length bucket) pairs are at risk, in a bounded memory. One thread at a time.
    Cost: some microseconds; chunk counts are remembered per build.
    """

    def __init__(self, config: TriggerConfig, enabled: bool = True, bucket_tokens: int = 128) -> None:
        """Start with nothing at risk.

        Args:
            config: limits; `admit_all` asks neither for risk nor for time.
            enabled: the relay as a whole; may be set later.
            bucket_tokens: width of a length bucket.
        """
        self.enabled = enabled
        self._config = config
        self._risks = _Risks(bucket_tokens, _RISKS_REMEMBERED)
        self._starts: dict[str, _ChunkStarts] = {}

    def decide(
        self, meta: Meta, build: Build | None, owner: Owner, lead_ms: float, feedback_max_age_s: float
    ) -> Verdict:
        """Decide on one request.

        Args:
            meta: lengths, as far as known.
            build: of `meta.build`; None if there is none.
            owner: of the key.
            lead_ms: time until ranking that all but few requests have.
            feedback_max_age_s: older feedback is not believed.
        """
        lengths = _lengths(meta, self._config.metadata_max_age_s)
        if not self.enabled or (build is not None and not build.enabled):
            return Verdict(Reason.DISABLED)
        if build is None or lengths is None:
            return Verdict(Reason.METADATA)
        if build.cacheable != "append":
            return Verdict(Reason.NOT_REUSABLE)
        verdict = self._in_time(lengths, meta.cached_tokens, build, owner, lead_ms)
        if verdict.reason is not Reason.ADMITTED and not self._config.admit_all:
            return verdict
        reason = self._placed(owner, feedback_max_age_s)
        return verdict if reason is verdict.reason else verdict.but(reason)

    def _placed(self, owner: Owner, feedback_max_age_s: float) -> Reason:
        if owner.key_inflight >= self._config.key_inflight_max:
            return Reason.HOT_KEY
        # Written so that NaN is refused.
        if not owner.active or not owner.feedback_age_s < feedback_max_age_s:
            return Reason.NO_INSTANCE
        return Reason.ADMITTED

    def _in_time(
        self, lengths: tuple[int, int, int], cached: int, build: Build, owner: Owner, lead_ms: float
    ) -> Verdict:
        """A full pass is too slow, a hit is not, and the prefix would be there before it is needed."""
        latency, budgets = build.latency, build.budgets
        if latency is None or budgets is None:
            return Verdict(Reason.ADMITTED)
        prefix, suffix, candidates = lengths
        usual = latency.coefficients.full_ms(prefix, suffix, candidates)
        full = latency.full_p99_ms(prefix, suffix, candidates)
        wait = inline_wait_ms(usual, owner.rank_rate_per_s)
        if not self._at_risk(build.name, prefix, suffix, full + wait + budgets.guard_ms, budgets.b_rank_ms):
            return Verdict(Reason.NOT_AT_RISK, full)
        hit = latency.hit_p99_ms(prefix, suffix, candidates)
        # By what a hit usually takes. A prefix whose hits are late one time in a hundred is worth it where a
        # full pass is nearly always late; and without hits, nothing would ever say that they are fast again.
        if latency.usual_ms(suffix, prefix, candidates) > budgets.b_rank_ms - budgets.guard_ms:
            return Verdict(Reason.NO_BENEFIT, full, hit)
        left = max(budgets.b_rank_ms - hit - budgets.guard_ms, 0.0)
        # Ranking may wait out what its budget leaves; chunks get the time that ranking does not take.
        limit = lead_ms + min(left, budgets.rank_wait_ms(hit)) - owner.pre_wait_ms
        limit *= max(1 - owner.rank_share, 0.0)
        there = self._pre_ms(build, latency, min(cached, prefix), float("inf"))[0] if cached else 0.0
        pre, in_time = self._pre_ms(build, latency, prefix, limit + there)
        pre = max(pre - there, 0.0)
        return Verdict(Reason.ADMITTED if in_time else Reason.TOO_LATE, full, hit, pre)

    def _at_risk(self, build: str, prefix: int, suffix: int, need_ms: float, budget_ms: float) -> bool:
        if prefix < self._config.seq_at_risk_min_tokens:
            return False
        if need_ms > budget_ms:
            return self._risks.turn(build, prefix + suffix, True)
        if need_ms <= (1 - self._config.hysteresis) * budget_ms:
            return self._risks.turn(build, prefix + suffix, False)
        return self._risks.is_on(build, prefix + suffix)

    def _pre_ms(
        self, build: Build, latency: LatencyModel, tokens: int, limit_ms: float
    ) -> tuple[float, bool]:
        """Time of the pre-inference, and whether it is within the limit.

        Chunks are only counted where one piece would be in time: so few that counting them is cheap.
        """
        if build.chunks is None:
            whole = latency.pre_ms(tokens)
            return whole, whole <= limit_ms
        if latency.pre_ms(tokens, 1) > limit_ms:
            return latency.pre_ms(tokens), False
        starts = self._starts.get(build.name)
        if starts is None or starts.chunks != build.chunks:
            starts = self._starts[build.name] = _ChunkStarts(build.chunks)
        chunked = latency.pre_ms(tokens, starts.count(tokens))
        return chunked, chunked <= limit_ms


def _lengths(meta: Meta, max_age_s: float) -> tuple[int, int, int] | None:
    """None if a length is missing or impossible, or all are too old."""
    prefix, suffix, candidates = meta.prefix_tokens, meta.suffix_tokens, meta.candidates
    if prefix is None or suffix is None or candidates is None or not meta.age_s < max_age_s:
        return None
    return (prefix, suffix, candidates) if min(prefix, suffix, candidates) >= 0 else None


class _Risks:
    """The (build, length bucket) pairs at risk; the longest unused are forgotten, which counts as safe."""

    __slots__ = ("_limit", "_on", "_width")

    def __init__(self, width: int, limit: int) -> None:
        self._width, self._limit = width, limit
        self._on: OrderedDict[tuple[str, int], None] = OrderedDict()

    def turn(self, build: str, tokens: int, on: bool) -> bool:
        key = (build, tokens // self._width)
        if not on:
            self._on.pop(key, None)
            return False
        self._on[key] = None
        self._on.move_to_end(key)
        if len(self._on) > self._limit:
            self._on.popitem(last=False)
        return True

    def is_on(self, build: str, tokens: int) -> bool:
        key = (build, tokens // self._width)
        if key not in self._on:
            return False
        self._on.move_to_end(key)
        return True


class _ChunkStarts:
    """Where the chunks of an endless prefix start; those of a shorter one start at the same tokens."""

    __slots__ = ("_next", "_starts", "_step", "chunks")

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        self._starts: list[int] = []
        self._next = 0
        self._step = _LONGEST_TOKENS

    def count(self, tokens: int) -> int:
        """As `Chunks.count`, remembering what was cut."""
        self._extend(tokens)
        starts, chunks = self._starts, self.chunks
        among = bisect_left(starts, tokens)
        last = bisect_left(range(among), True, key=lambda n: chunks.ends(starts[n], tokens - starts[n]))
        if last < among:
            return last + 1
        left = tokens - self._next
        return among + (chunks.single_pages(self._next, left) if left > 0 else 0)

    def _extend(self, tokens: int) -> None:
        """Cut up to `tokens`, or up to where every further chunk is one page."""
        while self._next < tokens and self._step > self.chunks.page_tokens:
            # Chunks never grow along a prefix, so that the one before bounds the next.
            self._step = self.chunks.tokens(self._next, self._step)
            if self._step > self.chunks.page_tokens:
                self._starts.append(self._next)
                self._next += self._step
