"""What of a prefix is copied from the host and what computed: the choice, and the speeds it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from relaygr.cache.chooser import Chooser, Found
from relaygr.cache.host import Weigh
from relaygr.cache.policy import Weight
from relaygr.cache.speeds import Compute, Link, MeasuredCompute, MeasuredLink, Part
from relaygr.config.host import HostConfig
from relaygr.core.state import Ref
from relaygr.engine.batch import Work
from relaygr.engine.residency import Residency
from relaygr.engine.tiers import Readable, Tiers
from relaygr.memory.lane import LaneStats
from relaygr.models.cost import cost
from relaygr.models.presets import AnyConfig

# Only the proportions of work of different shapes outlive the first pass.
_FLOPS_PER_MS = 2e7
_LINK_BYTES_PER_S = 2e9


def chooser_for(config: AnyConfig, host: HostConfig) -> Chooser:
    """What a model is expected to do, until its passes and copies were measured."""
    price = cost(config, element_bytes=1)
    compute = Compute(
        t1_ms=price.dense_flops_per_token / _FLOPS_PER_MS,
        t2_ms=price.attention_flops_per_pair / _FLOPS_PER_MS,
    )
    link, measured = MeasuredLink(Link(_LINK_BYTES_PER_S)), host.load == "measured"
    return Chooser(link, MeasuredCompute(compute), measured=measured)


def weigh_by(chooser: Chooser, token_bytes: int) -> Weigh:
    """What having a state in host memory saves, by the speeds of the moment; `token_bytes` are copied."""

    def weigh(tokens: int, nbytes: int) -> Weight:
        load_ms = chooser.link.copy_ms(tokens * token_bytes, 1)
        return Weight(nbytes, tokens, chooser.compute.pass_ms(tokens, 0, 0), load_ms)

    return weigh


class Loader:
    """Decides for rankings what is quicker copied than computed, and learns from how long both take.

    A prefix that a signal prepares is not decided on here: its relay has chosen, from the same copies, and
    where copies are made a part at a time nothing overlaps, so that the quickest way is one of the two that
    it knows. Runs where the engine runs.
    """

    def __init__(self, tiers: Tiers, chooser: Chooser) -> None:
        self._tiers, self._chooser = tiers, chooser
        if tiers.overlaps:
            chooser.layers = tiers.pool.layout.layers
        self._lane = LaneStats()

    @property
    def decisions(self) -> tuple[tuple[str, int], ...]:
        """So far, by what was done about the tokens of the host."""
        return tuple((way.value, count) for way, count in self._chooser.decisions.items())

    def count_anew(self) -> None:
        """What was decided so far was for passes that nobody asked for."""
        self._chooser.count_anew()

    def pass_ms(self, new_tokens: int, cached_tokens: int) -> float:
        """What computing a history behind its cached part takes, by the passes of late; from any thread."""
        return self._chooser.compute.pass_ms(new_tokens, cached_tokens, 0)

    def weigh(self, tokens: int) -> Weight:
        """What a state in host memory takes and saves; from any thread."""
        token_bytes = self._tiers.host_token_bytes
        return weigh_by(self._chooser, token_bytes)(tokens, tokens * token_bytes)

    def choose(self, ref: Ref, candidates: int, found: Readable) -> int:
        """The first tokens of `ref` to have on the device before the others are computed."""
        asked = Found(
            tokens=ref.tokens,
            device=found.device,
            host=found.host,
            candidates=candidates,
            token_bytes=self._tiers.host_token_bytes,
            page_tokens=self._tiers.pool.layout.page_tokens,
        )
        return self._chooser.choose(asked, 1000 * self._tiers.queue_s()).tokens

    def copied(self, nbytes: int, seconds: float) -> None:
        """A copy took so long."""
        self._chooser.link.observe(nbytes, 1, 1000 * seconds)

    def loaded(self, tokens: int, seconds: float) -> None:
        """So many tokens came in so long, while nothing was computed."""
        self.copied(tokens * self._tiers.host_token_bytes, seconds)

    def computed(self, wave: Sequence[Work], held: Sequence[Residency], seconds: float) -> None:
        """A pass took so long; of one that waited for copies it is known how long these took."""
        if any(residency.arrival is not None for residency in held):
            self._carried()
            return
        parts = [
            Part(work.tokens - residency.cached, residency.cached, len(work.candidates))
            for work, residency in zip(wave, held, strict=True)
            if len(work.candidates) or not residency.reason
        ]
        self._chooser.compute.observe(parts, 1000 * seconds)

    def _carried(self) -> None:
        """What the lane has copied since it was last asked."""
        lane, before = self._tiers.copy_stats().h2d or LaneStats(), self._lane
        self.copied(lane.bytes_total - before.bytes_total, lane.busy_s - before.busy_s)
        self._lane = lane
