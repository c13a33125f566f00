"""Lists drawn by the Plackett-Luce model, position by position, with their exact propensities.

Each step draws from the softmax over what the rules leave there, with fresh noise, so its probabilities are
those of the masks of this very prefix. One Gumbel key per item for the whole list would be cheaper, but is
wrong as soon as masks depend on the prefix: an item that is barred at first would keep the luck that it was
not allowed to use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.config.limits import Range
from relaygr.listwise.arrays import Bool, Float64, Int32, Int64
from relaygr.listwise.decode import ROOT, rescued
from relaygr.listwise.generators.relevance import Relevance, scale_of
from relaygr.listwise.masks import Marks
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class PlackettLuce:
    """`draws` independent lists, each with log_propensity = sum over t of log softmax(rel / temperature).

    The softmax is over the candidates with which the list can still be completed (`Walk.feasible`), so that
    the propensities of all lists sum to 1. A list that meets a dead end (possible only where the exact search
    ran out of nodes) is completed by the rescue search and has no propensity.

    Attributes:
        temperature: tau, in units of `rel`.
        draws: lists.
        relevance: the scale of `rel`.
    """

    temperature: float = 0.1
    draws: int = 1
    relevance: Relevance = "unit"

    def __post_init__(self) -> None:
        Range(0, 1e6, open_low=True).check("plackett_luce.temperature", self.temperature)
        Range(1, 1000).check("plackett_luce.draws", self.draws)

    @property
    def name(self) -> str:
        return f"plackett_luce({self.temperature:g})"

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        rng = np.random.Generator(np.random.PCG64(scene.seed(self.name)))
        walk, marks = scene.walk, scene.walk.start()
        alive, parents = np.arange(self.draws), np.zeros(self.draws, dtype=np.int64)
        picks = np.zeros((self.draws, walk.length), dtype=np.int32)
        steps = np.zeros((self.draws, walk.length))
        made: list[Proposal] = []
        for t in range(walk.length):
            budget.check()
            logs, mask = self._logs(scene, marks, t)
            noise = rng.random(self.draws)  # fresh at every step, also for lists that have ended
            rows = np.flatnonzero(mask[parents].any(axis=1))
            for lost in np.delete(alive, rows):
                made.extend(rescued(scene, self.name, picks[lost, :t]))
            alive, parents = alive[rows], parents[rows]
            if not len(alive):
                return made
            items = _drawn(logs[parents], noise[alive])
            steps[alive, t] = logs[parents, items]
            picks[alive, t] = items
            marks, parents = walk.step(marks, t, parents, items), np.arange(len(alive))
        drawn = [
            Proposal(picks[at].copy(), self.name, float(steps[at].sum()), steps=steps[at].copy())
            for at in alive
        ]
        return drawn + made

    def log_propensity(self, scene: Scene, picks: Int32) -> float:
        """The log-probability of drawing a list [length]; -inf if it cannot be drawn."""
        marks, total = scene.walk.start(), 0.0
        for t, item in enumerate(picks.tolist()):
            logs, mask = self._logs(scene, marks, t)
            if not mask[0, item]:
                return float("-inf")
            total += float(logs[0, item])
            marks = scene.walk.step(marks, t, ROOT, np.array([item]))
        return total

    def _logs(self, scene: Scene, marks: Marks, t: int) -> tuple[Float64, Bool]:
        """Log-probabilities of the next pick and what is feasible. [B, C] each"""
        mask = scene.walk.feasible(marks, t)
        value = np.broadcast_to(scene.value, mask.shape)
        if scene.walk.priced:
            value = value - scene.walk.price(marks, t)
        logits = np.where(mask, scale_of(scene, self.relevance)(value), -np.inf)
        open_rows = mask.any(axis=1)  # the others have no next pick, and no logarithm of anything
        some = logits[open_rows]
        # A quotient may overflow: that of the best one must not, or there is no probability at all.
        with np.errstate(over="ignore"):
            some = (some - some.max(axis=1, keepdims=True)) / self.temperature
        logits[open_rows] = some - np.log(np.exp(some).sum(axis=1, keepdims=True))
        return logits, mask


def _drawn(logs: Float64, noise: Float64) -> Int64:
    """One column a row, by inversion of the cumulative distribution. int64 [B]"""
    masses = np.exp(logs)
    ends = np.cumsum(masses, axis=1)
    items = (ends <= noise[:, None] * ends[:, -1:]).sum(axis=1)
    last = masses.shape[1] - 1 - (masses[:, ::-1] > 0).argmax(axis=1)
    drawn: Int64 = np.minimum(items, last)  # rounding may put the product on the end
    return drawn
