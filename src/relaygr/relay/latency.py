"""How long a pass takes on one build and machine, and what follows: hits, chunks, the longest history."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from relaygr.core.errors import ConfigError
from relaygr.relay.ratios import ErrorRatio, RatioWindow

MAX_COEFFICIENT_MS = 1e9
# Ratios to a prediction of nothing would have no bound.
_LEAST_PREDICTION_MS = 1e-3
_LAST_CHUNK = 1.25  # times `chunk_ms`, that the last chunk of a prefix may take
_FEW = 20  # passes of a kind: with fewer, all passes say more of it


def pairs(new_tokens: int, cached_tokens: int) -> float:
    """Pairs of a causal pass: a new token sees the cached ones, the new ones before it and itself."""
    return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2


class Pass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request's part of a run of the model.

    Attributes:
        new_tokens: history tokens computed, q.
        cached_tokens: history tokens found, ctx.
        candidates: candidates scored, c; each sees the history and itself.
        chunk: a step of a pre-inference, not a rank pass.

    Raises:
        ConfigError: a count is negative or above 2^31.
    """

    new_tokens: int
    cached_tokens: int = 0
    candidates: int = 0
    chunk: bool = False

    def __post_init__(self) -> None:
        for name, value in (
            ("new_tokens", self.new_tokens),
            ("cached_tokens", self.cached_tokens),
            ("candidates", self.candidates),
        ):
            if not 0 <= value <= 1 << 31:
                raise ConfigError(f"pass.{name}", f"{value} is outside [0, {1 << 31}]")

    @property
    def rows(self) -> int:
        return self.new_tokens + self.candidates

    @property
    def history_pairs(self) -> float:
        """Pairs of a new token and a key it sees."""
        return pairs(self.new_tokens, self.cached_tokens)

    @property
    def candidate_pairs(self) -> int:
        """Pairs of a candidate and a key it sees."""
        return self.candidates * (self.cached_tokens + self.new_tokens + 1)


class Coefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """T(q, ctx, c) = t0 + t1 q + t2 pairs(q, ctx) + t1c c + t2c c (ctx + q + 1), in milliseconds.

    Candidates go through all of the last layer, of which history tokens need half, and see all keys, which
    kernels do at another speed than a triangle.

    Attributes:
        t0_ms: of a rank pass as such.
        t1_ms: of a history token.
        t2_ms: of a history token and one key it sees.
        t_launch_ms: of a pre-inference chunk as such, in place of `t0_ms`.
        t1c_ms, t2c_ms: of a candidate, and of it and one key; None for as much as a history token's.

    Raises:
        ConfigError: a coefficient is negative, not finite or above 1e9.
    """

    t0_ms: float
    t1_ms: float
    t2_ms: float
    t_launch_ms: float
    t1c_ms: float | None = None
    t2c_ms: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            # Written so that NaN is refused.
            if value is not None and not 0 <= value <= MAX_COEFFICIENT_MS:
                raise ConfigError(f"latency.{name}", f"{value} is outside [0, {MAX_COEFFICIENT_MS:g}]")

    def scaled(self, factor: float) -> Coefficients:
        """Everything takes `factor` times as long."""
        return Coefficients(
            t0_ms=factor * self.t0_ms,
            t1_ms=factor * self.t1_ms,
            t2_ms=factor * self.t2_ms,
            t_launch_ms=factor * self.t_launch_ms,
            t1c_ms=None if self.t1c_ms is None else factor * self.t1c_ms,
            t2c_ms=None if self.t2c_ms is None else factor * self.t2c_ms,
        )

    def pass_ms(self, new_tokens: int, cached_tokens: int, candidates: int) -> float:
        """T(q, ctx, c)."""
        return self.parts_ms(new_tokens, cached_tokens, candidates)[1]

    def parts_ms(self, new_tokens: int, cached_tokens: int, candidates: int) -> tuple[float, float]:
        """What a pass takes for its history tokens, and as a whole."""
        history = self.history_ms(new_tokens, cached_tokens)
        scoring = self._scoring_ms(candidates, cached_tokens + new_tokens + 1) if candidates else 0.0
        return history, self.t0_ms + history + scoring

    def full_ms(self, prefix_tokens: int, suffix_tokens: int, candidates: int) -> float:
        """Everything computed."""
        return self.pass_ms(prefix_tokens + suffix_tokens, 0, candidates)

    def hit_ms(self, prefix_tokens: int, suffix_tokens: int, candidates: int) -> float:
        """The prefix found."""
        return self.pass_ms(suffix_tokens, prefix_tokens, candidates)

    def chunk_pass_ms(self, new_tokens: int, cached_tokens: int) -> float:
        """One pre-inference chunk."""
        return self.t_launch_ms + self.history_ms(new_tokens, cached_tokens)

    def pre_ms(self, prefix_tokens: int, chunks: int | None = None) -> float:
        """A pre-inference, in so many chunks or as one pass T(l, 0, 0)."""
        whole = self.pass_ms(prefix_tokens, 0, 0)
        return whole if chunks is None else whole - self.t0_ms + chunks * self.t_launch_ms

    def batch_ms(self, batch: Sequence[Pass]) -> float:
        """Several requests in one run: the fixed part is paid once, the larger one if the kinds are mixed."""
        if not batch:
            return 0.0
        fixed = max(self.t_launch_ms if one.chunk else self.t0_ms for one in batch)
        return fixed + sum(
            self.t1_ms * one.new_tokens
            + self.t2_ms * one.history_pairs
            + self._scoring_ms(one.candidates, one.cached_tokens + one.new_tokens + 1)
            for one in batch
        )

    def history_ms(self, new_tokens: int, cached_tokens: int) -> float:
        """Of a pass, what its history tokens take."""
        return self.t1_ms * new_tokens + self.t2_ms * pairs(new_tokens, cached_tokens)

    def _scoring_ms(self, candidates: int, keys: int) -> float:
        t1 = self.t1_ms if self.t1c_ms is None else self.t1c_ms
        t2 = self.t2_ms if self.t2c_ms is None else self.t2c_ms
        return candidates * (t1 + t2 * keys)

    def longest(self, budget_ms: float, candidates: int, limit_tokens: int, k99: float = 1.0) -> int | None:
        """Most history tokens, up to `limit_tokens`, that a full pass with `candidates` computes in time.

        None if the pass does not fit even without a history. Exact: one token more, if allowed, is late.
        """
        fitting = bisect_right(
            range(limit_tokens + 1), budget_ms, key=lambda n: k99 * self.pass_ms(n, 0, candidates)
        )
        return fitting - 1 if fitting else None


@dataclass(frozen=True, slots=True)
class Chunks:
    """How a pre-inference is cut so that nothing waits longer than `chunk_ms` for it, or for one page of it.

    The last chunk may take a quarter more: a few tokens by themselves would cost as much as a launch, which
    is more than a ranking loses by waiting for them.

    Attributes:
        coefficients: of the build.
        chunk_ms: what a chunk may take, if it is not the last.
        page_tokens: chunks are whole pages, except the last of a prefix.
    """

    coefficients: Coefficients
    chunk_ms: float
    page_tokens: int

    def step(self, cached_tokens: int, left_tokens: int) -> int:
        """The next chunk of a prefix that lacks so many tokens: `tokens`, or all of them where what would be
        left is hardly worth a launch of its own.
        """
        if self.ends(cached_tokens, left_tokens):
            return left_tokens
        return self.tokens(cached_tokens, left_tokens)

    def ends(self, cached_tokens: int, left_tokens: int) -> bool:
        """Whether the last chunk, which may be somewhat longer, takes so many tokens."""
        return self.coefficients.chunk_pass_ms(left_tokens, cached_tokens) <= _LAST_CHUNK * self.chunk_ms

    def tokens(self, cached_tokens: int, limit_tokens: int) -> int:
        """The chunk behind `cached_tokens`: whole pages that fit, at least one, at most `limit_tokens`."""
        pages = range(1, -(-limit_tokens // self.page_tokens) + 1)
        fitting = bisect_right(pages, self.chunk_ms, key=lambda p: self._pages_ms(p, cached_tokens))
        return min(max(fitting, 1) * self.page_tokens, limit_tokens)

    def count(self, tokens: int, cached_tokens: int = 0) -> int:
        """Chunks that `tokens` more take behind `cached_tokens`."""
        done = chunks = 0
        while done < tokens:
            step = self.step(cached_tokens + done, tokens - done)
            if step <= self.page_tokens:
                # Keys only grow, so that every further chunk but the last is one page as well.
                return chunks + self.single_pages(cached_tokens + done, tokens - done)
            done, chunks = done + step, chunks + 1
        return chunks

    def single_pages(self, cached_tokens: int, left_tokens: int) -> int:
        """Chunks of one page each, and the last one, that so many tokens take."""
        page, most = self.page_tokens, -(-left_tokens // self.page_tokens)
        before = bisect_left(
            range(most - 1), True, key=lambda n: self.ends(cached_tokens + n * page, left_tokens - n * page)
        )
        return before + 1

    def bound_ms(self, max_tokens: int) -> float:
        """The longest chunk of a prefix of up to `max_tokens`."""
        return max(_LAST_CHUNK * self.chunk_ms, self.page_ms(max_tokens))

    def page_ms(self, max_tokens: int) -> float:
        """The longest page of such a prefix, which may be above `chunk_ms`."""
        return self._pages_ms(1, max(max_tokens - self.page_tokens, 0))

    def _pages_ms(self, pages: int, cached_tokens: int) -> float:
        return self.coefficients.chunk_pass_ms(pages * self.page_tokens, cached_tokens)


class LatencyModel:
    """Coefficients, and how measured times compare with them: quantiles of measured over predicted time in
    windows of recent passes.

    Passes that mostly compute history and those that mostly score candidates have a window each. A hit takes
    a few milliseconds, of which what surrounds a pass is a good part: under load it takes 1.1 to 1.4 of its
    fitted time where long passes keep to theirs. With one window, in which hits are most, a server shortened
    histories that it had the time to compute.

    One thread may call `observe` and `reload`; any thread may read.
    """

    def __init__(
        self,
        coefficients: Coefficients,
        ratios: Iterable[float] = (),
        timed: Iterable[tuple[Pass, float]] = (),
    ) -> None:
        """Start from ratios that hold for all passes, and from single passes with what they took, ms."""
        self.reload(coefficients, ratios, timed)

    @property
    def coefficients(self) -> Coefficients:
        return self._coefficients

    @property
    def k99(self) -> float:
        """P99 of measured over predicted time of all passes; 1 until something was measured."""
        return self._all.p99

    @property
    def k50(self) -> float:
        """As `k99`, the median."""
        return self._all.p50

    def usual_ms(self, new_tokens: int, cached_tokens: int, candidates: int) -> float:
        """What every second such pass is done in."""
        history_ms, whole_ms = self._coefficients.parts_ms(new_tokens, cached_tokens, candidates)
        return (self._long if 2 * history_ms > whole_ms else self._short).p50 * whole_ms

    def p99_ms(self, new_tokens: int, cached_tokens: int, candidates: int) -> float:
        """What 99 of 100 such passes are done in."""
        history_ms, whole_ms = self._coefficients.parts_ms(new_tokens, cached_tokens, candidates)
        return (self._long if 2 * history_ms > whole_ms else self._short).p99 * whole_ms

    def full_p99_ms(self, prefix_tokens: int, suffix_tokens: int, candidates: int) -> float:
        return self.p99_ms(prefix_tokens + suffix_tokens, 0, candidates)

    def hit_p99_ms(self, prefix_tokens: int, suffix_tokens: int, candidates: int) -> float:
        return self.p99_ms(suffix_tokens, prefix_tokens, candidates)

    def pre_ms(self, prefix_tokens: int, chunks: int | None = None) -> float:
        """The usual time: of many chunks one after the other the scatter evens out."""
        return self._long.p50 * self._coefficients.pre_ms(prefix_tokens, chunks)

    def longest_p99(self, budget_ms: float, candidates: int, limit_tokens: int) -> int | None:
        """See `Coefficients.longest`; the budget is already without the guard."""
        return self._coefficients.longest(budget_ms, candidates, limit_tokens, self._long.p99)

    def chunks(self, chunk_ms: float, page_tokens: int) -> Chunks:
        """How to cut with the coefficients of now; ask again after a reload."""
        return Chunks(self._coefficients, chunk_ms, page_tokens)

    def observe(self, batch: Sequence[Pass], measured_ms: float) -> None:
        """One run of the model, and what it took.

        Raises:
            ValueError: the time is negative or not finite.
        """
        if not (0 <= measured_ms < math.inf):
            raise ValueError(f"measured_ms: {measured_ms} must be finite and not negative")
        if batch:
            self._add(batch, measured_ms)

    def reload(
        self,
        coefficients: Coefficients,
        ratios: Iterable[float] = (),
        timed: Iterable[tuple[Pass, float]] = (),
    ) -> None:
        """Go on with another calibration; ratios to the old one say nothing about it and are dropped."""
        known = list(ratios)
        self._coefficients = coefficients
        self._all, self._history, self._scoring = (RatioWindow(known) for _ in range(3))
        self._choose()
        for shape, ms in timed:
            self._add([shape], ms)

    def error(self) -> ErrorRatio:
        """How measured and predicted times of all passes compare in the window."""
        return self._all.error()

    def _add(self, batch: Sequence[Pass], ms: float) -> None:
        coefficients = self._coefficients
        whole_ms = coefficients.batch_ms(batch)
        history_ms = sum(coefficients.history_ms(one.new_tokens, one.cached_tokens) for one in batch)
        ratio = ms / max(whole_ms, _LEAST_PREDICTION_MS)
        self._all.add(ratio)
        (self._history if 2 * history_ms > whole_ms else self._scoring).add(ratio)
        self._choose()

    def _choose(self) -> None:
        """The windows that passes of either kind go by: of their kind, or of all passes while it has few."""
        self._long = self._history if len(self._history) >= _FEW else self._all
        self._short = self._scoring if len(self._scoring) >= _FEW else self._all
