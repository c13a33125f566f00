"""One decoder, its prompts and catalogues on one device: what a scheduler of generations runs.

An answer depends on the model, the prompt, the catalogue version and the request only: never on who runs
beside it, on chunks, on where keys and values lie or on what of them was there before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import msgspec
import torch

from relaygr.cache.interface import Reason, Stats
from relaygr.config.generator import GeneratorConfig
from relaygr.config.host import HostConfig
from relaygr.core.clock import Clock, MonotonicClock
from relaygr.core.ids import Fingerprint, tenant, user_id
from relaygr.engine.generation.admission import Admission
from relaygr.engine.generation.asks import GenerateAsk, Vocabulary
from relaygr.engine.generation.interface import Need, Step, StepKind
from relaygr.engine.generation.memory import GeneratorMemory, snapshot_rule
from relaygr.engine.generation.prompts import Asked
from relaygr.engine.generation.recurrent import StateShelf, StateStats
from relaygr.engine.generation.seats import GenerateSeat, SeatModel
from relaygr.engine.generation.states import NoRoom, PromptStates, decoder_cost
from relaygr.engine.tiers import NO_HOST
from relaygr.generation.catalogue.versions import Catalogues
from relaygr.generation.errors import KvBudgetError
from relaygr.generation.rounds import Rounds
from relaygr.generation.search import Search
from relaygr.generation.trace import Trace
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.rows import PromptRow

log = logging.getLogger("relaygr.engine")

_MIN_LEASE_S = 60.0


@dataclass(frozen=True, slots=True)
class Encoded:
    """What became of a prompt that was encoded ahead.

    Attributes:
        tokens: of the prompt; cached: that were there already.
        resident: whether all of it is in the cache now.
        reason: why not; empty if it is.
    """

    tokens: int
    cached: int
    resident: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GeneratorStats:
    """Counters since the start, and what is held now.

    Attributes:
        seats: requests that hold memory.
        beam_bytes, scratch_bytes: that they hold.
        pages: of prompts, by state.
        states: recurrent ones of prompts; None for a model without linear layers.
        prompt_tokens, cached_tokens, loaded_tokens: of requests that were admitted; of these found in the
            cache; of these brought from host memory.
        decisions: by what was done about the tokens of the host.
    """

    seats: int
    beam_bytes: int
    scratch_bytes: int
    pages: Stats
    prompt_tokens: int
    cached_tokens: int
    loaded_tokens: int
    decisions: tuple[tuple[str, int], ...]
    states: StateStats | None = None


class Generator:
    """The backend of a `GenerateScheduler`.

    Args:
        catalogues: `check` pins their serving version.
        host: how prompts lie in host memory; `config.host_bytes` says how many.
        vocabulary: how codes and texts become tokens, where catalogues do not say so.
        overlap: prepare rounds on a thread of its own while the model computes.
        kind: how rounds are searched; others than the default are for comparison.

    Raises:
        ConfigError: memory that cannot be had, or is less than a page.
    """

    def __init__(
        self,
        decoder: Decoder,
        model_fp: Fingerprint,
        catalogues: Catalogues,
        config: GeneratorConfig | None = None,
        *,
        host: HostConfig = NO_HOST,
        clock: Clock | None = None,
        vocabulary: Vocabulary | None = None,
        overlap: bool = True,
        trace: Trace | None = None,
        kind: type[Search[GenerateSeat]] = Search,
    ) -> None:
        self.config = settings = config or GeneratorConfig()
        self.decoder, self.model_fp, self.catalogues = decoder, model_fp, catalogues
        self._clock: Clock = clock or MonotonicClock()
        self.memory = memory = GeneratorMemory(decoder.config, decoder.dtype, settings)
        self.layout = memory.layout
        lease_s = max(settings.deadline_max_ms / 1000, _MIN_LEASE_S)
        below = msgspec.structs.replace(
            host,
            host_bytes=memory.host.pages,
            copy_threads=0,  # copies are made at admission, before anything is computed
            disk_bytes=0,
            disk_path="",
            snapshot_path="",
        )
        cost = decoder_cost(decoder.config)
        self._rule = snapshot_rule(decoder, settings)
        # Cuts lie at the same tokens of a prompt, whoever it runs with.
        grain = self._rule.grain if self._rule is not None else 1
        self._piece = max(settings.prefill_chunk_tokens // grain, 1) * grain
        shelf = None
        if memory.states is not None and self._rule is not None:
            shelf = partial(StateShelf, memory.states, self._rule, memory.device.states, memory.host.states)
        room = memory.layout, memory.device.pages, lease_s, below
        self._states = PromptStates(*room, cost, self._clock, shelf)
        self._admission = Admission(decoder.config, model_fp, catalogues, settings, memory, vocabulary)
        self._worker = ThreadPoolExecutor(1, "relaygr-prepare") if overlap else None
        self.trace, self._kind = trace or Trace(self._clock), kind
        self._rounds: Rounds[GenerateSeat] = Rounds(SeatModel(decoder), self._clock, self._worker, self.trace)
        # Around books, pages and pools; what only computes with what is held needs none.
        self._lock = threading.RLock()
        self._computing = threading.Lock()  # one forward at a time; taken before `_lock`
        self._seats = self._scratch = self._prompt_tokens = self._cached = self._loaded = 0

    @property
    def reads_texts(self) -> bool:
        """Whether a text can be a prompt."""
        return self._admission.reads_texts

    def window_items(self) -> int:
        """Items of a history that a prompt holds at most, by the catalogue that is served.

        Raises:
            UnavailableError: there is none.
        """
        return self._admission.window_items()

    def close(self) -> None:
        """End the thread that prepares rounds."""
        if self._worker is not None:
            self._worker.shutdown()

    def check(self, asked: Asked) -> GenerateAsk:
        """See `Admission.check`."""
        return self._admission.check(asked)

    def need(self, ask: GenerateAsk) -> Need:
        return Need(max(ask.tokens - self._states.near(ask.refs), 1), ask.rows)

    def seat(self, ask: GenerateAsk) -> GenerateSeat | None:
        """Reserve pages, beam slots and scratch; a state in host memory is brought, if that is quicker."""
        use = ask.use
        assert ask.plan is not None
        with self._lock:
            if self._scratch + use.scratch + use.index > self.config.scratch_bytes:
                return None
            fed = ask.plan.widths.fed
            beams = self.memory.reserve(fed) if fed else None
            if fed and beams is None:
                return None
            try:
                prompt = self._states.take(ask.refs)
            except BaseException:
                if beams is not None:
                    beams.release()
                raise
            if isinstance(prompt, NoRoom):
                if beams is not None:
                    beams.release()
                if prompt.reason is Reason.TOO_LARGE:
                    message = f"{ask.tokens} prompt tokens do not fit the device"
                    raise KvBudgetError(ask.request_id, message, limit=self._states.pages)
                return None
            self._seats += 1
            self._scratch += use.scratch + use.index
            self._prompt_tokens += ask.tokens
            self._cached += prompt.cached
            self._loaded += prompt.loaded
        linear = None
        if prompt.state is not None and beams is not None:
            linear = self.decoder.state_beams(prompt.state, beams.records)
        return GenerateSeat(ask, prompt, beams, linear, self.model_fp.hex(), self._give_back, self._kind)

    @torch.inference_mode()
    def prefill(self, seats: Sequence[GenerateSeat]) -> Step:
        """About a chunk of prompt tokens, of the first prompts that are not complete."""
        began_s, budget = self._clock.now_s(), self.config.prefill_chunk_tokens
        sizes: list[tuple[int, int]] = []
        # With the lock held, so that nobody is forgotten between a prompt's last row and its publication.
        with self._computing, self._lock:
            while True:
                parts: list[tuple[GenerateSeat, int]] = []
                for seat in seats:
                    took = self._stop(seat.done, seat.done + seat.left) - seat.done
                    if seat.prefilled or seat.outcome is not None or (took > budget and (sizes or parts)):
                        continue
                    parts.append((seat, took))
                    budget -= took
                if not parts:
                    break
                sizes += [(took, seat.done) for seat, took in parts]
                self._compute(parts)
        now = self._clock.now_s()
        self._states.computed([size for size in sizes if size[0]], now - began_s)
        tokens, took_s = sum(new for new, _ in sizes), now - began_s
        return Step(StepKind.PREFILL, len(seats), tokens=tokens, seconds=took_s, forward_s=took_s)

    @torch.inference_mode()
    def round(self, seats: Sequence[GenerateSeat]) -> Step:
        began_s = self._clock.now_s()
        level = {seat: seat.search.level for seat in seats}
        rows = sum(len(seat.search.rounds[-1].nodes) if seat.search.rounds else 1 for seat in seats)
        with self._computing:
            self._rounds.advance()
        clocked = [seat.search.clocked for seat in seats if seat.search.level > level[seat]]
        return Step(
            StepKind.ROUND,
            len(seats),
            rows=rows,
            seconds=self._clock.now_s() - began_s,
            forward_s=max((one.forward_ms[-1] for one in clocked if one.forward_ms), default=0.0) / 1000,
            select_s=sum(one.selection_ms[-1] for one in clocked) / 1000,
            prepare_s=sum(one.preparation_ms[-1] for one in clocked if one.preparation_ms) / 1000,
            wait_s=max((one.waited_ms[-1] for one in clocked if one.waited_ms), default=0.0) / 1000,
        )

    @torch.inference_mode()
    def encode(self, ask: GenerateAsk) -> tuple[Step, Encoded | None]:
        """A chunk of a prompt, kept at once, so that a request may go on from there."""
        began_s, whole = self._clock.now_s(), ask.refs[0]
        with self._computing, self._lock:
            part = self._states.part(whole, self.config.prefill_chunk_tokens)
            found = self._states.take([part])
            if isinstance(found, NoRoom):
                return Step(StepKind.ENCODE, 1), Encoded(ask.tokens, 0, False, str(found.reason))
            try:
                cached, hidden = found.cached, found.hidden
                for start, stop in self._pieces(cached, part.tokens):
                    tokens = torch.from_numpy(ask.prompt.tokens[start:stop].copy())
                    row = PromptRow(tokens, start, found.store, found.state)
                    if stop == whole.tokens:
                        hidden = self.decoder.prefill([row])
                    else:
                        self.decoder.remember([row])
                    found.passed()
                now = self._clock.now_s()
                kept = found.complete(now, hidden if part.tokens == whole.tokens else None)
            finally:
                found.close()
            if part.tokens > cached:
                self._states.computed([(part.tokens - cached, cached)], now - began_s)
        took_s = now - began_s
        step = Step(StepKind.ENCODE, 1, tokens=part.tokens - cached, seconds=took_s, forward_s=took_s)
        if not kept:
            return step, Encoded(ask.tokens, cached, False, "forgotten")
        done = part.tokens == whole.tokens
        return step, Encoded(ask.tokens, cached, True) if done else None

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Where [start, stop) of a prompt is cut."""
        while start < stop:
            end = self._stop(start, stop)
            yield start, end
            start = end

    def _stop(self, start: int, total: int) -> int:
        """Where the next piece of a prompt ends."""
        end = min(start - start % self._piece + self._piece, total)
        return end if self._rule is None else min(end, self._rule.stop(start, total))

    def alone(self) -> AbstractContextManager[object]:
        """Keeps the model for whoever else computes with it; not for the thread of the scheduler."""
        return self._computing

    def chore(self) -> bool:
        with self._lock:
            return self._states.spill()

    def forget(self, tenant_name: str, user: str) -> int:
        """Drop what is kept of a user's prompts; returns the entries dropped."""
        with self._lock:
            return self._states.forget(tenant(tenant_name), user_id(user))

    def stats(self) -> GeneratorStats:
        with self._lock:
            return GeneratorStats(
                seats=self._seats,
                beam_bytes=self.memory.beam_bytes,
                scratch_bytes=self._scratch,
                pages=self._states.stats(),
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached,
                loaded_tokens=self._loaded,
                decisions=self._states.decisions,
                states=None if self._states.shelf is None else self._states.shelf.stats(),
            )

    def _compute(self, parts: Sequence[tuple[GenerateSeat, int]]) -> None:
        """One piece of each of some prompts."""
        began_s = self._clock.now_s()
        some = [(seat, took) for seat, took in parts if took < seat.left]
        last = [seat for seat, took in parts if took == seat.left]
        if some:
            try:
                self.decoder.remember([seat.row(took) for seat, took in some])
            except Exception as error:  # noqa: BLE001 - those whose last tokens are next are not at fault
                for seat, _ in some:
                    seat.fail(error)
            else:
                spent_s = self._clock.now_s() - began_s
                for seat, took in some:
                    seat.done += took
                    seat.spent_s += spent_s
                    seat.prompt.passed()
        if last:
            self._rounds.join([seat.search for seat in last])
            for seat in last:
                self._complete(seat)

    def _complete(self, seat: GenerateSeat) -> None:
        """Its prompt is computed, or it has failed."""
        if not seat.search.live:
            return
        seat.done += seat.left
        seat.search.clocked.prefill_ms += 1000 * seat.spent_s
        try:
            seat.prompt.complete(self._clock.now_s(), seat.hidden)
        except Exception as error:  # noqa: BLE001 - nobody else's fault
            seat.fail(error)
        seat.prefilled = True

    def _give_back(self, seat: GenerateSeat) -> None:
        with self._lock:
            seat.prompt.close()
            if seat.memory is not None:
                seat.memory.release()
            if seat.spoilt:
                self._states.drop(seat.prompt.ref)
            self._seats -= 1
            self._scratch -= seat.ask.use.scratch + seat.ask.use.index
