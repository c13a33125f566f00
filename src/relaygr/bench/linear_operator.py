"""Linear attention of one layer under beam search: records of one state, a state a beam, and replays."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor

from relaygr.bench.timing import Timing, Variant, round_robin
from relaygr.generation.ancestors import Ancestors
from relaygr.kernels.materialised import MaterialisedBeams, ReplayedBeams
from relaygr.kernels.recurrent import Family, RecurrentSpec
from relaygr.kernels.recurrent_select import choose_recurrent
from relaygr.memory.records import BeamRecords, RecordPool
from relaygr.memory.recurrent import RecurrentLayout, index_bytes

Fed = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]  # q, k, v, log_decay, beta


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of some runs."""

    median_ms: float
    min_ms: float
    max_ms: float
    runs: int

    @staticmethod
    def of(timing: Timing) -> Spread:
        times = timing.times_ms
        return Spread(median_ms=timing.median_ms, min_ms=min(times), max_ms=max(times), runs=len(times))


class OperatorCell(msgspec.Struct, frozen=True, kw_only=True):
    """One shape: T rounds of fork and step of one layer, reorder included.

    Attributes:
        heads: key heads and value heads.
        dim: dk and dv.
        rounds: T, tokens fed to each beam.
        records, materialised, replayed: times of all rounds; the last is None if it was not asked for.
        record_bytes: the prompt's state, all records and the ancestor index.
        materialised_bytes: a state for each beam, without the second buffer that a gather needs.
        max_difference: of any output of the first two, relative to the largest output.
    """

    width: int
    heads: int
    dim: int
    rounds: int
    records: Spread
    materialised: Spread
    replayed: Spread | None
    record_bytes: int
    materialised_bytes: int
    max_difference: float

    @property
    def ratio(self) -> float:
        """Times as fast as with a state for each beam."""
        return self.materialised.median_ms / self.records.median_ms

    @property
    def replay_ratio(self) -> float | None:
        return None if self.replayed is None else self.replayed.median_ms / self.records.median_ms


@dataclass(frozen=True, slots=True)
class OperatorShape:
    """What one cell runs."""

    family: Family
    width: int
    heads: int
    dim: int
    rounds: int

    @property
    def spec(self) -> RecurrentSpec:
        return RecurrentSpec(self.family, self.heads, self.heads, self.dim, self.dim)

    @property
    def layout(self) -> RecurrentLayout:
        spec = self.spec
        return RecurrentLayout(1, self.heads, self.heads, self.dim, self.dim, spec.decay_shape)


class OperatorCase:
    """One search: a prompt's state, and for each round random parents and a random token a beam."""

    def __init__(self, shape: OperatorShape, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        self.shape, self.spec = shape, shape.spec
        width, size = shape.width, (shape.width, shape.heads, shape.dim)
        self.state = torch.randn(self.spec.state_shape, generator=g)
        self.parents, self.fed = [], list[Fed]()
        for r in range(shape.rounds):
            self.parents.append(torch.randint(0, width if r else 1, (width,), generator=g))
            q, k = (F.normalize(torch.randn(size, generator=g), dim=-1) for _ in range(2))
            decay = -torch.rand((width, *self.spec.decay_shape), generator=g) / 10
            beta = torch.rand((width, shape.heads), generator=g) if self.spec.delta else None
            self.fed.append((q, k, torch.randn(size, generator=g), decay, beta))
        self._kernel = choose_recurrent().kernel
        self._pool = RecordPool(shape.layout, shape.layout.slot_bytes.total * width * shape.rounds)
        self._own = MaterialisedBeams(self.spec, self.state)

    def records(self) -> list[Tensor]:
        """What the beams read in each round, by records."""
        taken = self._pool.reserve((self.shape.width,) * self.shape.rounds)
        assert taken is not None
        try:
            return self._rounds(taken)
        finally:
            taken.release()

    def materialised(self) -> list[Tensor]:
        """The same by a state for each beam."""
        self._own.restart(self.state)
        outs = []
        for parents, fed in zip(self.parents, self.fed, strict=True):
            self._own.fork(parents)
            outs.append(self._own.step(*fed))
        return outs

    def replayed(self) -> list[Tensor]:
        """The same by running each beam's suffix again."""
        ancestors, beams = self._ancestors(), ReplayedBeams(self.spec, self.state)
        return [
            beams.step(*fed, ancestors.fork(parents))
            for parents, fed in zip(self.parents, self.fed, strict=True)
        ]

    def measure(self, runs: int, replay: bool) -> OperatorCell:
        """Each way in turns, once untimed before."""
        shape, ours, theirs = self.shape, self.records(), self.materialised()
        scale = max(float(x.abs().max()) for x in theirs)
        furthest = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
        del ours, theirs
        variants = [Variant("records", self.records, warm=True), Variant("materialised", self.materialised)]
        if replay:
            self.replayed()
            variants.append(Variant("replayed", self.replayed))
        spreads = [Spread.of(timing) for timing in round_robin(variants, runs)]
        widths = (shape.width,) * shape.rounds
        return OperatorCell(
            width=shape.width,
            heads=shape.heads,
            dim=shape.dim,
            rounds=shape.rounds,
            records=spreads[0],
            materialised=spreads[1],
            replayed=spreads[2] if replay else None,
            record_bytes=shape.layout.request_bytes(widths).state + index_bytes(shape.rounds, shape.width),
            materialised_bytes=self._own.state_bytes,
            max_difference=furthest / scale,
        )

    def _ancestors(self) -> Ancestors:
        return Ancestors(self.shape.rounds, self.shape.width)

    def _rounds(self, own: BeamRecords) -> list[Tensor]:
        ancestors, outs = self._ancestors(), []
        for depth, (parents, fed) in enumerate(zip(self.parents, self.fed, strict=True), start=1):
            anc = ancestors.fork(parents)
            out, updates = self._kernel.beams(self.spec, *fed, self.state, own.layer(0), anc)
            own.write(0, depth, fed[1], updates, fed[3])
            outs.append(out)
        return outs
