"""Whole searches on a hybrid decoder of random weights: with records, with a state a beam, and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor

from relaygr.bench.linear_operator import Spread
from relaygr.bench.timing import Timing, Variant, round_robin
from relaygr.generation.ancestors import Ancestors
from relaygr.generation.catalogue.build import build_index
from relaygr.generation.catalogue.rows import Rows
from relaygr.generation.catalogue.tokens import stacked
from relaygr.generation.columns import HeadPlan
from relaygr.generation.search import Search, SearchPlan
from relaygr.generation.select import Beams
from relaygr.generation.widths import Widths
from relaygr.kernels.beam_select import choose_beams
from relaygr.kernels.recurrent_select import choose_recurrent
from relaygr.memory.beams import BeamPool
from relaygr.memory.records import RecordPool
from relaygr.memory.recurrent import LinearBytes, index_bytes
from relaygr.memory.stores import PrivateKv
from relaygr.models.decoder.config import DecoderConfig, RopeConfig
from relaygr.models.decoder.decoder import Decoder
from relaygr.models.decoder.linear_config import LinearConfig
from relaygr.models.decoder.rows import BeamRows, PromptRow
from relaygr.models.decoder.state_beams import MaterialisedStates, ReplayedStates, StateBeams

SIZES = (8192, 8192, 8192)
_SPECIALS, _SIDS = 64, 200_000
_CHUNK = 2048  # prompt tokens of a pass
_PREFILL_S = 10.0  # no further run of a prefill starts after this long
# Three linear layers to a full one, and heads twice as wide as the rest together, as Qwen3-Next has them.
SHAPE = DecoderConfig(
    family="qwen3_next",
    vocab_size=_SPECIALS + sum(SIZES),
    hidden_size=512,
    mlp_size=1536,
    num_layers=4,
    num_heads=8,
    num_kv_heads=1,
    head_dim=128,
    rope=RopeConfig(theta=10_000_000.0, part=0.25),
    linear=LinearConfig(
        layer_types=(*("linear_attention",) * 3, "full_attention"),
        key_heads=4,
        value_heads=8,
        key_dim=128,
        value_dim=128,
    ),
)


class EndToEndCell(msgspec.Struct, frozen=True, kw_only=True):
    """One width and prompt length: the same search three ways.

    Attributes:
        prefill: of the prompt, the same for all.
        records, materialised, replayed: the decode phase: all forwards, heads and selections after the
            prefill. The last is None if it was not asked for.
        record_bytes, materialised_bytes: of a request, states and convolution rows apart.
        index_bytes: of its ancestor index, which all layers share.
        kv_bytes: of its full-attention layers, the same for all.
        max_difference: of logits of the first two, fed the same beams, relative to the largest.
        same_sets: all found the same best semantic ids.
    """

    width: int
    prompt: int
    prefill: Spread
    records: Spread
    materialised: Spread
    replayed: Spread | None = None
    record_bytes: LinearBytes
    materialised_bytes: LinearBytes
    index_bytes: int
    kv_bytes: int
    max_difference: float
    same_sets: bool

    @property
    def decode_ratio(self) -> float:
        return self.materialised.median_ms / self.records.median_ms

    @property
    def replay_ratio(self) -> float | None:
        return None if self.replayed is None else self.replayed.median_ms / self.records.median_ms

    @property
    def total_ratio(self) -> float:
        first = self.prefill.median_ms
        return (first + self.materialised.median_ms) / (first + self.records.median_ms)


@dataclass(frozen=True, slots=True)
class _Decoded:
    """Logits of each round, and what each round selected."""

    logits: list[Tensor]
    rounds: list[Beams]


class DecodeBench:
    """The decoder and the catalogue.

    Args:
        longest: most prompt tokens.
        widest: most beams.
        shape: of the decoder; its vocabulary holds the codes of `sizes` behind some other tokens.
    """

    def __init__(
        self,
        seed: int,
        longest: int,
        widest: int,
        shape: DecoderConfig = SHAPE,
        sizes: Sequence[int] = SIZES,
        sids: int = _SIDS,
    ) -> None:
        self.seed = seed
        config = msgspec.structs.replace(shape, max_positions=longest + len(sizes))
        beams = choose_beams(config.num_heads, config.num_kv_heads, config.head_dim, torch.float32, "auto")
        model = Decoder(config, beams.kernel, recurrent=choose_recurrent().kernel)
        self.model = model.init_weights(seed).eval().requires_grad_(False)
        generator = np.random.default_rng(seed)
        codes = np.unique(generator.integers(0, sizes, (sids, len(sizes))), axis=0)
        self.index = build_index(Rows(item_ids=np.arange(len(codes)), codes=codes), sizes).index
        tokens = stacked(sizes, config.vocab_size - sum(sizes)).resolve(sizes)
        self.heads = HeadPlan(tokens, config.vocab_size)
        layout = config.recurrent_layout(torch.float32)
        assert layout is not None
        slots, self.fed = widest * (len(sizes) - 1), len(sizes) - 1
        self.layout = layout
        self.records = RecordPool(layout, slots * layout.slot_bytes.total)
        one = 2 * config.full_layers * config.kv_size * 4
        self.slots = BeamPool(
            config.full_layers, config.num_kv_heads, config.head_dim, torch.float32, slots * one
        )

    def case(self, tokens: int, runs: int) -> DecodeCase:
        """A random prompt, prefilled."""
        return DecodeCase(self, tokens, runs)


class DecodeCase:
    """One prompt, and searches behind it."""

    @torch.inference_mode()
    def __init__(self, bench: DecodeBench, tokens: int, runs: int) -> None:
        self.bench, self.tokens = bench, tokens
        model, generator = bench.model, torch.Generator().manual_seed(bench.seed + tokens)
        self._prompt = torch.randint(model.config.vocab_size, (tokens,), generator=generator)
        self.kv = PrivateKv(model.config.kv_layout(model.dtype, 32), tokens)
        (timing,) = round_robin([Variant("prefill", self._prefill)], runs, _PREFILL_S)
        self.prefill = Spread.of(timing)

    def _prefill(self) -> None:
        state = self.bench.model.empty_state()
        assert state is not None
        for start in range(0, self.tokens, _CHUNK):
            row = PromptRow(self._prompt[start : start + _CHUNK], start, self.kv, state)
            self.hidden = self.bench.model.prefill([row])
        self.state = state

    @torch.inference_mode()
    def measure(self, width: int, runs: int, replay: bool) -> EndToEndCell:
        """Each way in turns, once untimed before."""
        bench, widths = self.bench, (width,) * self.bench.fed
        config = bench.model.config
        assert config.linear is not None
        spec, states = config.linear.spec, None

        def materialised(forced: list[Beams] | None = None) -> _Decoded:
            nonlocal states  # a server would not ask for this memory anew with each request
            if states is None:
                states = MaterialisedStates(spec, self.state)
            states.restart(self.state)
            return self.decode(width, states, forced)

        def replayed() -> _Decoded:
            return self.decode(width, ReplayedStates(spec, self.state))

        ours, theirs = self._recorded(width), materialised()
        found = [_leaves(ours), _leaves(theirs)]
        apart = _apart(ours, materialised(ours.rounds))
        variants: list[tuple[str, Callable[[], object]]] = [
            ("records", lambda: self._recorded(width)),
            ("materialised", materialised),
        ]
        if replay:
            found.append(_leaves(replayed()))
            variants.append(("replayed", replayed))
        timings: tuple[Timing, ...] = round_robin([Variant(*one) for one in variants], runs)
        spreads = [Spread.of(timing) for timing in timings]
        own = bench.slots.bytes_for([width] * bench.fed)
        return EndToEndCell(
            width=width,
            prompt=self.tokens,
            prefill=self.prefill,
            records=spreads[0],
            materialised=spreads[1],
            replayed=spreads[2] if replay else None,
            record_bytes=bench.layout.request_bytes(widths),
            materialised_bytes=bench.layout.materialised_bytes(width),
            index_bytes=index_bytes(bench.fed, width),
            kv_bytes=config.kv_layout(torch.float32, 32).token_bytes * self.tokens + own,
            max_difference=apart,
            same_sets=all(leaves == found[0] for leaves in found),
        )

    def decode(self, width: int, linear: StateBeams, forced: list[Beams] | None = None) -> _Decoded:
        """All rounds behind the prompt; `forced` feeds other beams than the ones that were found."""
        bench, levels = self.bench, self.bench.index.levels
        plan = SearchPlan("bench", bench.index, bench.heads, Widths((width,) * levels))
        search, ancestors = Search(plan, None, lambda _: None), Ancestors([width] * bench.fed)
        own = bench.slots.reserve([width] * bench.fed)
        assert own is not None
        hidden, scores = self.hidden, []
        try:
            for level in range(1, levels + 1):
                pool = search.prepare()
                logits = bench.model.logits(hidden, pool.head.columns)
                scores.append(logits)
                if forced is None:
                    search.select(pool, logits)
                else:
                    search.rounds.append(forced[level - 1])
                if level == levels:
                    break
                anc = ancestors.fork(torch.from_numpy(search.rounds[-1].parents))
                row = BeamRows(
                    tokens=torch.from_numpy(search.fed()),
                    position=self.tokens + level - 1,
                    depth=level,
                    prompt=self.kv,
                    prompt_tokens=self.tokens,
                    own=own,
                    anc=anc,
                    linear=linear,
                )
                hidden = bench.model.step([row])
        finally:
            own.release()
        return _Decoded(scores, search.rounds)

    def _recorded(self, width: int) -> _Decoded:
        records = self.bench.records.reserve((width,) * self.bench.fed)
        assert records is not None
        try:
            return self.decode(width, self.bench.model.state_beams(self.state, records))
        finally:
            records.release()


def _leaves(decoded: _Decoded) -> set[int]:
    return set(decoded.rounds[-1].nodes.tolist())


def _apart(ours: _Decoded, theirs: _Decoded) -> float:
    """Largest difference of logits, relative to the largest logit."""
    scale = max(float(logits.abs().max()) for logits in theirs.logits)
    pairs = zip(ours.logits, theirs.logits, strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs) / scale
