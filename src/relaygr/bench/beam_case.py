"""What beams are timed on: a decoder with random weights, random semantic ids, fresh prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.config.generator import GeneratorConfig
from relaygr.core.ids import Fingerprint
from relaygr.core.units import GIB, MIB
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.opening import choose_kernels
from relaygr.engine.generation.prompts import Asked
from relaygr.engine.generation.seats import GenerateSeat
from relaygr.generation.catalogue.artefact import make_catalogue
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import stacked
from relaygr.generation.catalogue.versions import Catalogues
from relaygr.generation.requests import GenerateRequest
from relaygr.generation.search import Search
from relaygr.kernels.select import DTYPES
from relaygr.models.decoder.config import DecoderConfig, RopeConfig
from relaygr.models.decoder.decoder import Decoder

SIZES = (8192, 8192, 8192)
SPECIALS = 64
BASES = tuple(SPECIALS + level * SIZES[0] for level in range(len(SIZES)))  # tokens of code 0
SHAPE = DecoderConfig(
    family="qwen3",
    vocab_size=SPECIALS + sum(SIZES),
    hidden_size=256,
    mlp_size=768,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    rope=RopeConfig(theta=1_000_000.0),
    max_positions=8192,
)


def make_decoder(dtype: str, seed: int) -> Decoder:
    """The decoder of the comparison, with its kernels chosen by measurement."""
    decoder = Decoder(SHAPE).init_weights(seed).cast(DTYPES[dtype]).eval().requires_grad_(False)
    choose_kernels(decoder, GeneratorConfig())
    return decoder


def make_catalogues(sids: int, seed: int) -> Catalogues:
    """A catalogue of about so many random semantic ids, one item each."""
    generator = np.random.default_rng((seed, sids))
    codes = generator.integers(0, SIZES[0], (sids, len(SIZES)))
    # Real codes are skewed: half of the ids lie under an eighth of the first level.
    codes[: sids // 2, 0] %= SIZES[0] // 8
    codes = np.unique(codes, axis=0)
    index = build_index(Rows(item_ids=np.arange(len(codes)), codes=codes), SIZES).index
    catalogues = Catalogues()
    catalogues.install(make_catalogue(index, tokens=stacked(SIZES, SPECIALS)))
    return catalogues


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts that nobody has asked for before, so that nothing of them is cached."""

    seed: int

    def tokens(self, number: int, length: int) -> list[int]:
        generator = np.random.default_rng((self.seed, number, length))
        found: list[int] = generator.integers(SPECIALS, SHAPE.vocab_size, length).tolist()
        return found

    def asked(self, number: int, length: int, width: int) -> Asked:
        return Asked(
            request=GenerateRequest(
                request_id=str(number), token_ids=self.tokens(number, length), beam_width=width
            )
        )


def make_generator(
    decoder: Decoder,
    catalogues: Catalogues,
    kind: type[Search[GenerateSeat]] = Search,
    overlap: bool = True,
    **settings: object,
) -> Generator:
    """A generator without host memory; `settings` are of its configuration."""
    config = GeneratorConfig(
        **{"device_bytes": 256 * MIB, "host_bytes": 0, "scratch_bytes": GIB, "max_beam_width": 1024}
        | settings  # type: ignore[arg-type]
    )
    fingerprint = Fingerprint(b"\0" * 16)
    return Generator(decoder, fingerprint, catalogues, config, overlap=overlap, kind=kind)
