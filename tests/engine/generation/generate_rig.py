"""A small real decoder over a small catalogue, with a scheduler or without; answers that can be compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from relaygr.config.generator import GeneratorConfig
from relaygr.config.host import HostConfig
from relaygr.core.clock import Clock
from relaygr.core.errors import RelayError
from relaygr.core.ids import Fingerprint
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.prompts import Asked
from relaygr.engine.generation.scheduler import GenerateScheduler
from relaygr.engine.generation.seats import Generated, GenerateSeat
from relaygr.engine.history import UserHistory
from relaygr.generation.catalogue.artefact import Catalogue, make_catalogue
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import PromptTemplate, stacked
from relaygr.generation.catalogue.versions import Catalogues
from relaygr.generation.requests import GenerateRequest
from relaygr.kernels.cpu.beams import CpuBeams
from relaygr.kernels.cpu.parts import TiledRoute
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.decoder import Decoder

SIZES = (16, 16, 16)
FIRST = 8  # tokens in front of the codes
ITEMS = 400
VOCAB = FIRST + sum(SIZES)
MODEL = Fingerprint(b"m" * 16)
SHAPE = DecoderConfig(
    family="qwen3",
    vocab_size=VOCAB,
    hidden_size=32,
    mlp_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=512,
)
TEMPLATE = PromptTemplate(before=(1, 2), item_after=(3,), after=(4,))
SETTINGS: dict[str, Any] = {
    "device_bytes": 1 << 20,
    "beam_bytes": 1 << 20,
    "scratch_bytes": 1 << 20,
    "host_bytes": 0,
    "page_tokens": 8,
    "max_prompt_tokens": 256,
    "prefill_chunk_tokens": 64,
    "max_wait_ms": 0,
}


@lru_cache(1)
def decoder() -> Decoder:
    # Large weights, so that scores lie far apart.
    model = Decoder(SHAPE, CpuBeams(TiledRoute())).init_weights(1, 0.3)
    return model.eval().requires_grad_(False)


def catalogue(seed: int = 0, template: PromptTemplate = TEMPLATE, items: int = ITEMS) -> Catalogue:
    rng = np.random.default_rng(seed)
    codes = np.stack([(size * rng.random(items) ** 2).astype(np.int64) for size in SIZES], 1)
    index = build_index(Rows(item_ids=np.arange(items), codes=codes), SIZES).index
    return make_catalogue(index, tokens=stacked(SIZES, FIRST), template=template, as_of_s=0.0)


@lru_cache(1)
def wide_catalogue() -> Catalogue:
    """More prefixes than any request has beams: one that asks for many takes the memory of as many."""
    sizes = (14, 14, 10, 10)
    codes = np.random.default_rng(0).integers(0, sizes, (15_000, len(sizes)))
    index = build_index(Rows(item_ids=np.arange(len(codes)), codes=codes), sizes).index
    return make_catalogue(index, tokens=stacked(sizes, FIRST), template=TEMPLATE, as_of_s=0.0)


def installed(catalogue: Catalogue) -> Catalogues:
    catalogues = Catalogues()
    catalogues.install(catalogue)
    return catalogues


def generator(
    settings: dict[str, Any] | None = None,
    host: HostConfig | None = None,
    clock: Clock | None = None,
    catalogues: Catalogues | None = None,
    **more: Any,
) -> Generator:
    if catalogues is None:
        catalogues = installed(catalogue())
    config = GeneratorConfig(**{**SETTINGS, **(settings or {})})
    below = host or HostConfig(run_chunk_tokens=8, load="always")
    return Generator(decoder(), MODEL, catalogues, config, host=below, clock=clock, **more)


@contextlib.contextmanager
def serving(
    settings: dict[str, Any] | None = None, **more: Any
) -> Iterator[tuple[Generator, GenerateScheduler]]:
    """A generator under a scheduler, both closed behind."""
    scheduling = {name: more.pop(name) for name in ("observer", "turns") if name in more}
    backend = generator(settings, **more)
    scheduler = GenerateScheduler(backend, backend.config, more.get("clock"), **scheduling)
    try:
        yield backend, scheduler
    finally:
        scheduler.close()
        backend.close()


def history(user: str, items: Sequence[int], first: int = 0) -> UserHistory:
    return UserHistory(user, list(items), list(range(len(items))), first_sequence=first)


def of_user(user: str, items: Sequence[int], first: int = 0, **more: Any) -> Asked:
    request = GenerateRequest(user=user, **{"request_id": user, "beam_width": 8, **more})
    return Asked(request=request, history=history(user, items, first))


def of_tokens(tokens: Sequence[int], **more: Any) -> Asked:
    return Asked(request=GenerateRequest(token_ids=list(tokens), **{"beam_width": 8, **more}))


def run(backend: Generator, asked: Sequence[Asked]) -> list[Generated | RelayError]:
    """All in one group, without a scheduler; each must get a seat."""
    asks = [backend.check(one) for one in asked]
    seats: list[GenerateSeat] = []
    try:
        for ask in asks:
            seat = backend.seat(ask)
            assert seat is not None, "no room"
            seats.append(seat)
        while any(not seat.prefilled and seat.outcome is None for seat in seats):
            backend.prefill([seat for seat in seats if not seat.prefilled and seat.outcome is None])
        while any(seat.outcome is None for seat in seats):
            backend.round([seat for seat in seats if seat.outcome is None])
        outcomes = [seat.outcome for seat in seats]
    finally:
        for seat in seats:
            seat.close()
        for ask in asks:
            ask.close()
    return [outcome for outcome in outcomes if outcome is not None]


def one(backend: Generator, asked: Asked) -> Generated:
    [outcome] = run(backend, [asked])
    assert isinstance(outcome, Generated), outcome
    return outcome


def rows(generated: object) -> list[tuple[tuple[int, ...], float, tuple[Any, ...]]]:
    """What an answer says, bit for bit."""
    assert isinstance(generated, Generated), generated
    return [(row.sid, row.score, row.items) for row in generated.result.found.rows]


def dense_logits(tokens: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The model's logits after a row of tokens, by plain attention in fp32."""
    with torch.no_grad():
        found = decoder().train_logits(torch.tensor([list(tokens)]))[0, -1]
    return found.double().numpy()
