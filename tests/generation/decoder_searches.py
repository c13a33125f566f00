"""A small random decoder behind the round loop, and the same search by whole forwards without any cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from search_cases import Corpus
from torch import Tensor

from relaygr.generation.catalogue.filters import Filter
from relaygr.generation.columns import Columns
from relaygr.generation.normalise import Normalization
from relaygr.generation.reference import Row, Sid, brute_force
from relaygr.generation.rounds import Feed
from relaygr.generation.search import Search, SearchPlan
from relaygr.kernels.beams import BeamKernel, Mode
from relaygr.memory.beams import BeamKv, BeamPool
from relaygr.memory.stores import PrivateKv
from relaygr.models.decoder.config import DecoderConfig
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.rows import BeamRows, PromptRow


def decoder_of(vocab_size: int, seed: int, kernel: BeamKernel | None = None, mode: Mode = "auto") -> Decoder:
    config = DecoderConfig(
        family="qwen3",
        vocab_size=vocab_size,
        hidden_size=24,
        mlp_size=40,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_positions=64,
    )
    return Decoder(config, kernel, mode).init_weights(seed, deviation=0.2)


@dataclass(eq=False)
class DecoderContext:
    """A request's prompt and its beams' memory."""

    prompt: Tensor
    store: PrivateKv
    own: BeamKv | None


class DecoderModel:
    """The decoder as the rounds see it."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def start(self, contexts: Sequence[DecoderContext]) -> Tensor:
        return self.decoder.prefill([PromptRow(one.prompt, 0, one.store) for one in contexts])

    def step(self, feeds: Sequence[Feed[DecoderContext]]) -> Tensor:
        return self.decoder.step([self._rows(feed) for feed in feeds])

    def logits(self, hidden: Tensor, columns: Columns) -> Tensor:
        return self.decoder.logits(hidden, columns)

    @staticmethod
    def _rows(feed: Feed[DecoderContext]) -> BeamRows:
        one, tokens = feed.context, len(feed.context.prompt)
        assert one.own is not None
        return BeamRows(
            feed.tokens, tokens + feed.depth - 1, feed.depth, one.store, tokens, one.own, feed.anc
        )


def prompt_of(number: int, vocab_size: int) -> Tensor:
    rng = np.random.default_rng(number)
    return torch.from_numpy(rng.integers(0, vocab_size, int(rng.integers(1, 30))))


def decoder_search(
    decoder: Decoder, pool: BeamPool, plan: SearchPlan, number: int, kind: type[Search[Any]] = Search
) -> Search[DecoderContext]:
    """A search whose beam memory is taken now and given back when it ends."""
    prompt = prompt_of(number, decoder.config.vocab_size)
    store = PrivateKv(decoder.config.kv_layout(decoder.dtype, 16), len(prompt))
    fed = plan.widths.fed
    own = pool.reserve(fed) if fed else None

    def ended(_: object) -> None:
        if own is not None:
            own.release()

    return kind(plan, DecoderContext(prompt, store, own), ended)


def pool_of(decoder: Decoder) -> BeamPool:
    config = decoder.config
    return BeamPool(config.num_layers, config.num_kv_heads, config.head_dim, decoder.dtype, 8 << 20)


class WholeForwards:
    """Brute force; the logits of all prefixes are those of whole rows through plain attention."""

    def __init__(self, of: Corpus, decoder: Decoder, number: int) -> None:
        self.of = of
        prompt = prompt_of(number, decoder.config.vocab_size)
        self._rows: dict[Sid, Row] = {}
        for level in range(of.index.levels):
            prefixes = sorted({sid[:level] for sid in of.sids})
            fed = [[of.tables[at][code] for at, code in enumerate(prefix)] for prefix in prefixes]
            codes = torch.tensor(fed, dtype=torch.int64).view(len(prefixes), level)
            whole = torch.cat((prompt.expand(len(prefixes), -1), codes), dim=1)
            with torch.no_grad():
                logits = decoder.train_logits(whole)[:, -1].numpy()
            self._rows.update(zip(prefixes, logits, strict=True))

    def expected(
        self, widths: Sequence[int], normalization: Normalization, items: Filter | None = None
    ) -> list[tuple[Sid, float]]:
        of = self.of
        return brute_force(of.sids_with(items), self._rows.__getitem__, of.tables, widths, normalization)
