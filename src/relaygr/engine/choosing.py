"""What of a prefix is copied from the host and what computed: the choice, and the speeds it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from relaygr.cache.chooser import Chooser
from relaygr.cache.host import Weigh
from relaygr.cache.policy import Weight
from relaygr.cache.speeds import Compute, Link, MeasuredCompute, MeasuredLink, Part
from relaygr.core.clock import Clock
from relaygr.core.state import Ref
from relaygr.engine.batch import Work
from relaygr.engine.residency import Residency
from relaygr.engine.tiers import Tiers
from relaygr.models.cost import cost
from relaygr.models.presets import AnyConfig

# Only the proportions of work of different shapes outlive the first pass.
_FLOPS_PER_MS = 2e7
_LINK_BYTES_PER_S = 2e9
# Copies end before computing begins: nothing of the two overlaps.
_LAYERS = 1


def chooser_for(config: AnyConfig) -> Chooser:
    """What a model is expected to do, until its passes and copies were measured."""
    price = cost(config, element_bytes=1)
    compute = Compute(
        t1_ms=price.dense_flops_per_token / _FLOPS_PER_MS,
        t2_ms=price.attention_flops_per_pair / _FLOPS_PER_MS,
    )
    return Chooser(MeasuredLink(Link(_LINK_BYTES_PER_S)), MeasuredCompute(compute), _LAYERS)


def weigh_by(chooser: Chooser, token_bytes: int) -> Weigh:
    """What having a state in host memory saves, by the speeds of the moment; `token_bytes` are copied."""

    def weigh(tokens: int, nbytes: int) -> Weight:
        load_ms = chooser.link.copy_ms(tokens * token_bytes, 1)
        return Weight(nbytes, tokens, chooser.compute.pass_ms(tokens, 0, 0), load_ms)

    return weigh


class Loader:
    """Loads for rankings what is quicker copied than computed, and learns from how long both take.

    A prefix that a signal prepares is not decided on here: its relay has chosen, from the same copies, and
    where nothing overlaps the quickest way is one of the two that it knows. Runs where the engine runs.
    """

    def __init__(self, tiers: Tiers, chooser: Chooser, clock: Clock) -> None:
        self._tiers, self._clock, self._chooser = tiers, clock, chooser

    @property
    def decisions(self) -> tuple[tuple[str, int], ...]:
        """So far, by what was done about the tokens of the host."""
        return tuple((way.value, count) for way, count in self._chooser.decisions.items())

    def load(self, ref: Ref, candidates: int, now_s: float) -> int:
        """Returns the tokens copied."""
        began_s = self._clock.now_s()
        loaded = self._tiers.load(ref, now_s, candidates, self._chooser)
        if loaded:
            self.copied(loaded * self._tiers.host_token_bytes, self._clock.now_s() - began_s)
        return loaded

    def copied(self, nbytes: int, seconds: float) -> None:
        """A copy took so long."""
        self._chooser.link.observe(nbytes, 1, 1000 * seconds)

    def computed(self, wave: Sequence[Work], held: Sequence[Residency], seconds: float) -> None:
        """A pass took so long."""
        parts = [
            Part(work.tokens - residency.cached, residency.cached, len(work.candidates))
            for work, residency in zip(wave, held, strict=True)
            if len(work.candidates) or not residency.reason
        ]
        self._chooser.compute.observe(parts, 1000 * seconds)
