"""One request at a time: where its milliseconds go, beside the baseline and the peer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from relaygr.bench.beam_case import SIZES, Prompts
from relaygr.bench.beam_naive import NaiveBeams
from relaygr.bench.beam_peer import peer_beams, peer_prefill
from relaygr.bench.timing import time_ms
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.seats import Generated


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of one request; of several, their medians.

    Attributes:
        prefill_ms: the prompt; total_ms: from the check of the request to its rows.
        forward_ms, head_ms, selection_ms: over all rounds.
        preparation_ms: index work, beside the forwards; waited_ms: of that, what a forward did not cover.
    """

    prefill_ms: float
    total_ms: float
    forward_ms: float
    head_ms: float
    selection_ms: float
    preparation_ms: float
    waited_ms: float


class BeamCell(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one width, prompt length and catalogue.

    Attributes:
        total_over_prefill: median of the ratios of single runs.
        candidates: that a request's rounds chose from; unique: semantic ids in its answer.
        kv_bytes: of the prompt, and of the beams.
        naive_ms, naive_prefill_ms: of the baseline; None where it was not run.
        transformers_ms, transformers_prefill_ms: of the peer; None where it was not run.
    """

    width: int
    prompt: int
    sids: int
    runs: int
    ours: Phases
    total_over_prefill: float
    candidates: int
    unique: int
    kv_bytes: tuple[int, int]
    naive_ms: float | None = None
    transformers_prefill_ms: float | None = None
    transformers_ms: float | None = None

    @property
    def prefill_ms(self) -> float:
        return self.ours.prefill_ms

    @property
    def total_ms(self) -> float:
        return self.ours.total_ms


def run_once(
    generator: Generator, prompts: Prompts, number: int, length: int, width: int
) -> tuple[Phases, Generated]:
    """One request from its check to its rows, alone."""
    asked = prompts.asked(number, length, width)
    began = time.perf_counter()
    ask = generator.check(asked)
    seat = generator.seat(ask)
    assert seat is not None
    try:
        while not seat.prefilled and seat.outcome is None:
            generator.prefill([seat])
        prefilled = time.perf_counter()
        while seat.outcome is None:
            generator.round([seat])
        ended = time.perf_counter()
        answer = seat.outcome
    finally:
        seat.close()
        ask.close()
    assert isinstance(answer, Generated), answer
    times = answer.result.found.timings
    phases = Phases(
        prefill_ms=(prefilled - began) * 1e3,
        total_ms=(ended - began) * 1e3,
        forward_ms=sum(times.forward_ms),
        head_ms=sum(times.head_ms),
        selection_ms=sum(times.selection_ms),
        preparation_ms=sum(times.preparation_ms),
        waited_ms=sum(times.waited_ms),
    )
    return phases, answer


def measure(
    generator: Generator,
    sids: int,
    width: int,
    length: int,
    runs: int,
    prompts: Prompts,
    *,
    naive: NaiveBeams | None = None,
    peer: Any | None = None,
    peer_runs: int = 0,
    first: int = 0,
) -> BeamCell:
    """Runs in turns with the peer's prompt pass, so that a slow second of the machine hits both.

    Args:
        peer_runs: of the peer's beam search, which takes seconds.
        first: number of the first prompt; later ones follow.
    """
    run_once(generator, prompts, first, length, width)
    phases: list[Phases] = []
    peer_prefills: list[float] = []
    answer: Generated | None = None
    if peer is not None:
        peer_prefill(peer, prompts.tokens(first, length))
    for number in range(first + 1, first + 1 + runs):
        if peer is not None:
            tokens = prompts.tokens(number, length)
            peer_prefills.append(time_ms(lambda tokens=tokens: peer_prefill(peer, tokens)))  # type: ignore[misc]
        found, answer = run_once(generator, prompts, number, length, width)
        phases.append(found)
    tokens = prompts.tokens(first, length)
    naive_ms = _median(2, lambda: naive.generate(tokens, width)) if naive is not None else None
    peer_ms = (
        _median(peer_runs, lambda: peer_beams(peer, tokens, width, len(SIZES)))
        if peer is not None and peer_runs
        else None
    )
    assert answer is not None
    found_rows = answer.result.found
    return BeamCell(
        width=width,
        prompt=length,
        sids=sids,
        runs=runs,
        ours=_medians(phases),
        total_over_prefill=statistics.median(one.total_ms / one.prefill_ms for one in phases),
        candidates=sum(found_rows.candidates),
        unique=len({row.sid for row in found_rows.rows}),
        kv_bytes=(answer.kv.shared, answer.kv.unshared),
        naive_ms=naive_ms,
        transformers_prefill_ms=statistics.median(peer_prefills) if peer_prefills else None,
        transformers_ms=peer_ms,
    )


def _medians(phases: Sequence[Phases]) -> Phases:
    names = Phases.__struct_fields__
    return Phases(**{name: statistics.median(getattr(one, name) for one in phases) for name in names})


def _median(runs: int, call: Callable[[], object]) -> float:
    return statistics.median(time_ms(call) for _ in range(runs))
