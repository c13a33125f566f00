"""Small decoders with linear layers over the catalogue of `generate_rig`, and their books."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from generate_rig import SETTINGS, SHAPE, catalogue, installed
from msgspec.structs import replace

from relaygr.config.generator import GeneratorConfig
from relaygr.config.host import HostConfig
from relaygr.core.ids import Fingerprint
from relaygr.engine.generation.generator import Generator
from relaygr.engine.generation.recurrent import StateShelf
from relaygr.engine.generation.seats import GenerateSeat
from relaygr.generation.catalogue.versions import Catalogues
from relaygr.kernels.cpu.beams import CpuBeams
from relaygr.kernels.cpu.parts import TiledRoute
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.linear_config import LayerKind, LinearConfig

GRAIN = 64  # tokens of a chunk of the kernel
STATE_MODEL = Fingerprint(b"h" * 16)
_L: LayerKind = "linear_attention"
_F: LayerKind = "full_attention"
KINDS: dict[str, tuple[LayerKind, ...]] = {"hybrid": (_L, _F, _L), "linear": (_L, _L)}
FAT: tuple[LayerKind, ...] = (_L, _F)  # with keys and values so large that the least memory holds few prompts
STATE_SETTINGS: dict[str, Any] = {
    **SETTINGS,
    "device_bytes": 2 << 20,
    "max_prompt_tokens": 400,
    "prefill_chunk_tokens": 128,
    "state_snapshot_tokens": 64,
    "state_snapshots": 3,
}


@lru_cache(4)
def hybrid_decoder(kind: str = "hybrid", seed: int = 1) -> Decoder:
    kinds = FAT if kind == "fat" else KINDS[kind]
    linear = LinearConfig(layer_types=kinds, key_heads=2, value_heads=4, key_dim=8, value_dim=12)
    dim = 64 if kind == "fat" else SHAPE.head_dim
    shape = replace(SHAPE, family="qwen3_next", num_layers=len(kinds), head_dim=dim, linear=linear)
    model = Decoder(shape, CpuBeams(TiledRoute())).init_weights(seed, 0.3)
    return model.eval().requires_grad_(False)


def hybrid_generator(
    settings: dict[str, Any] | None = None,
    kind: str = "hybrid",
    host: HostConfig | None = None,
    catalogues: Catalogues | None = None,
    decoder: Decoder | None = None,
    model_fp: Fingerprint = STATE_MODEL,
    **more: Any,
) -> Generator:
    config = GeneratorConfig(**{**STATE_SETTINGS, **(settings or {})})
    below = host or HostConfig(run_chunk_tokens=8, load="always")
    served = installed(catalogue()) if catalogues is None else catalogues
    model = hybrid_decoder(kind) if decoder is None else decoder
    return Generator(model, model_fp, served, config, host=below, **more)


def shelf_of(backend: Generator) -> StateShelf:
    shelf = backend._states.shelf
    assert shelf is not None
    return shelf


def states_held(seats: list[GenerateSeat]) -> int:
    """States of requests, and those that they have taken of themselves and not shown yet."""
    working = [seat.prompt.working for seat in seats]
    assert all(one is not None for one in working)
    return sum(1 + len(one.taken) for one in working if one is not None)


def audit(backend: Generator, seats: list[GenerateSeat] | None = None) -> None:
    """All books against a count from scratch."""
    backend._states.tiers.books.audit()
    shelf_of(backend).audit(states_held(seats or []))
