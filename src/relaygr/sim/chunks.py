"""Where the chunks of a pre-inference end, and when."""

from __future__ import annotations

from dataclasses import dataclass

from relaygr.relay.latency import Chunks

_REMEMBERED = 4096
_ENDLESS = 1 << 31


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Tokens present after each chunk, and seconds from the beginning until then."""

    tokens: tuple[int, ...]
    ends_s: tuple[float, ...]


class ChunkPlans:
    """How prefixes are cut, remembering what was cut before: chunks of all prefixes begin at the same tokens.

    A chunk ends with a page, except the last of a prefix, as it does in the engine.
    """

    __slots__ = ("_chunks", "_plans", "_steps")

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._steps: dict[int, int] = {}
        self._plans: dict[tuple[int, int], ChunkPlan] = {}

    def plan(self, done: int, target: int) -> ChunkPlan:
        """From `done` tokens to `target`; without a step if there is nothing to do."""
        key = (done, target)
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
            found = self._plans[key] = self._cut(done, target)
        return found

    def bound_ms(self, max_tokens: int) -> float:
        """The longest chunk of a prefix of up to `max_tokens`."""
        return self._chunks.bound_ms(max_tokens)

    def _cut(self, done: int, target: int) -> ChunkPlan:
        cost = self._chunks.coefficients.chunk_pass_ms
        tokens, ends_s, passed_ms = [], [], 0.0
        while done < target:
            end = target if self._chunks.ends(done, target - done) else min(self._next(done), target)
            passed_ms += cost(end - done, done)
            tokens.append(end)
            ends_s.append(passed_ms / 1000)
            done = end
        return ChunkPlan(tuple(tokens), tuple(ends_s))

    def _next(self, done: int) -> int:
        end = self._steps.get(done)
        if end is None:
            page = self._chunks.page_tokens
            whole = (done + self._chunks.tokens(done, _ENDLESS)) // page * page
            end = self._steps[done] = whole if whole > done else (done // page + 1) * page
        return end
