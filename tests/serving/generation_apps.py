"""A small decoder and catalogues on disk for the tests of generation over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from serving_apps import save_model, settings

from patience import PATIENCE_S
from relaygr.config.generator import GeneratorConfig
from relaygr.config.settings import Config
from relaygr.core.units import MIB
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.interface import Step
from relaygr.engine.generation.seats import GenerateSeat
from relaygr.generation.catalogue.artefact import make_catalogue, write_catalogue
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import stacked
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.huggingface import save_decoder

SIZES = (8, 8, 8)
ITEMS = 200
SHAPE = DecoderConfig(
    family="qwen3",
    vocab_size=1 + sum(SIZES),
    hidden_size=16,
    mlp_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    max_positions=512,
)


def item_codes(seed: int = 0, items: int = ITEMS) -> np.ndarray[Any, Any]:
    """int64 [items, 3]; some items share theirs."""
    return np.random.default_rng(seed).integers(0, 8, (items, len(SIZES)))


def save_catalogue(folder: Path, seed: int = 0, items: int = ITEMS) -> str:
    """A catalogue of items 1..; returns its version."""
    index = build_index(Rows(item_ids=np.arange(1, items + 1), codes=item_codes(seed, items)), SIZES).index
    catalogue = make_catalogue(index, tokens=stacked(SIZES, 1), as_of_s=1_700_000_000.0)
    write_catalogue(folder, catalogue)
    return catalogue.label


def save_generator(folder: Path, seed: int = 0) -> str:
    """A decoder with random weights; returns its fingerprint."""
    return save_decoder(Decoder(SHAPE).init_weights(seed, 0.3), folder).hex()


def generating(folder: Path, **changes: Any) -> Config:
    """Settings of a service with ranker, decoder and catalogue under `folder`; made if they are not there."""
    ranker, decoder, catalogue = folder / "ranker", folder / "decoder", folder / "catalogue"
    if not ranker.exists():
        save_model(ranker)
        save_generator(decoder)
        save_catalogue(catalogue)
    generator = GeneratorConfig(
        **{
            "model": str(decoder),
            "catalogue": str(catalogue),
            "device_bytes": 4 * MIB,
            "beam_bytes": 4 * MIB,
            "host_bytes": 0,
            "max_prompt_tokens": 384,
            "beam_width": 8,
            "dtype": "fp32",
        }
        | changes
    )
    base = settings(ranker)
    return Config(engine=base.engine, store=base.store, serving=base.serving, generator=generator)


class HeldRounds:
    """A generator that stops at the beginning of its next round, until it is let go.

    Attributes:
        sizes: requests of each round that was begun.
    """

    def __init__(self, generator: Generator) -> None:
        self.sizes: list[int] = []
        self._generator, self._round = generator, generator.round
        self._entered, self._go = threading.Semaphore(0), threading.Event()

    def __enter__(self) -> HeldRounds:
        self._generator.round = self._held  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        del self._generator.round

    def await_round(self) -> None:
        assert self._entered.acquire(timeout=PATIENCE_S)

    def release(self) -> None:
        """This round, and all that follow."""
        self._go.set()

    def _held(self, seats: Sequence[GenerateSeat]) -> Step:
        self.sizes.append(len(seats))
        self._entered.release()
        assert self._go.wait(PATIENCE_S)
        return self._round(seats)
