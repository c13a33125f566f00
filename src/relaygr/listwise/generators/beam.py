"""Greedy and beam search under the step model, by the monotone rule.

Per position there is one pool of children. For j = 1..B the children of the list in slot j enter the pool,
then the best child of the pool is taken into slot j of the next position. What is in the first B slots does
therefore not depend on how many more there are, and the best finished list never gets worse as B grows;
ordinary beam search lacks this. A slot stays empty if the pool is. Where every list can be continued (as with
exact look-ahead), a B of at least the number of prefixes is exhaustive.
"""

from __future__ import annotations

import heapq
from enum import StrEnum

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64, Int32, Int64
from relaygr.listwise.decode import rescued
from relaygr.listwise.lists import ListModel
from relaygr.listwise.proposal import Budget, Proposal
from relaygr.listwise.scene import Scene
from relaygr.listwise.search import Scored, StepSearch

DEFAULT_WIDTH = 4
DEFAULT_TOP = 30


class Rest(StrEnum):
    """What a prefix is credited with for the positions that are still free."""

    NONE = "none"
    MEAN = "mean"  # the mean pointwise value of the top L at each
    OPTIMISTIC = "optimistic"  # the best pointwise values that are left


class Beam:
    """Search over the top m candidates by pointwise rank.

    Args:
        model: values.
        width: B, lists kept at each position; 1 is greedy.
        top: m; None for all candidates.
        rest: credit for free positions.
        keep: lists proposed, the best by U first.
        name: `greedy` for width 1 and `beamB` otherwise.

    Raises:
        ConfigError: naming the value and the limit.
    """

    def __init__(
        self,
        model: ListModel,
        width: int = DEFAULT_WIDTH,
        top: int | None = DEFAULT_TOP,
        rest: Rest = Rest.MEAN,
        keep: int = 1,
        name: str | None = None,
    ) -> None:
        for field, number in (("width", width), ("top", top), ("keep", keep)):
            if number is not None and number < 1:
                raise ConfigError(field, f"{number} is below 1")
        self._model, self.width, self.top, self.rest, self.keep = model, width, top, Rest(rest), keep
        self.name = name or ("greedy" if width == 1 else f"beam{width}")

    def like(self, other: Beam) -> bool:
        """Whether the two differ in width, lists kept and name alone."""
        return (self._model, self.top, self.rest) == (other._model, other.top, other.rest)

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        columns = None if self.top is None else scene.top(self.top)
        if columns is None or len(columns) == len(scene):
            return self._search(scene, budget)
        return _widened(self._search(scene.narrow(columns), budget), columns)

    def propose_with_greedy(self, scene: Scene, budget: Budget, greedy: Beam) -> list[Proposal]:
        """What `greedy` proposes and what this does, by one search: slot 1 is greedy at every position.

        `greedy` has width 1 and the other settings of this.
        """
        columns = None if self.top is None else scene.top(self.top)
        if columns is None or len(columns) == len(scene):
            return self._both(scene, budget, greedy)
        return _widened(self._both(scene.narrow(columns), budget, greedy), columns)

    def _both(self, scene: Scene, budget: Budget, greedy: Beam) -> list[Proposal]:
        found = self._lists(scene, budget)
        if isinstance(found, list) or found[1][0] != 0:  # a dead end, of all lists or of greedy's
            mine = found if isinstance(found, list) else self._kept(scene, found[0])
            return [*greedy.propose(scene, budget), *mine]
        return [Proposal(found[0][0], greedy.name), *self._kept(scene, found[0])]

    def _search(self, scene: Scene, budget: Budget) -> list[Proposal]:
        found = self._lists(scene, budget)
        return found if isinstance(found, list) else self._kept(scene, found[0])

    def _kept(self, scene: Scene, lists: Int32) -> list[Proposal]:
        return [Proposal(picks, self.name) for picks in self._best(scene, lists)]

    def _lists(self, scene: Scene, budget: Budget) -> tuple[Int32, Int64] | list[Proposal]:
        """Finished lists [n, L] and their slots [n], from 0; what the rescue made if all met a dead end."""
        search = StepSearch.of(self._model, scene)
        beams, length = search.start(), scene.length
        credit = float(scene.value[:length].mean())
        slots = np.zeros(1, dtype=np.int64)
        lists = np.zeros((1, 0), dtype=np.int32)  # [B, t]
        for t in range(length):
            budget.check()
            scored = search.score(beams, t)
            scores = self._scores(scene, scored, lists, length - t - 1, credit)
            parents, items, slots = take(scores, slots, self.width)
            if not len(parents):
                # All lists met a dead end at once.
                best = int(beams.utility.argmax())
                return rescued(scene, self.name, lists[best])
            lists = np.concatenate([lists[parents], items[:, None].astype(np.int32)], axis=1)
            if t + 1 < length:
                beams = search.step(beams, t, scored, parents, items)
        return lists, slots

    def _scores(self, scene: Scene, scored: Scored, lists: Int32, left: int, credit: float) -> Float64:
        if not left or self.rest is Rest.NONE:
            return scored.gain
        if self.rest is Rest.MEAN:
            return scored.gain + scored.survival * (left * credit)
        return scored.gain + scored.survival * remaining(scene.value, lists, left)

    def _best(self, scene: Scene, lists: Int32) -> Int32:
        """The lists of the highest U, the one of better pointwise ranks first among equal ones."""
        if len(lists) == 1:
            return lists
        utility = self._model.utilities(scene, lists)
        order = np.lexsort((*lists.T[::-1], -utility))
        return lists[order[: self.keep]]


class BeamWithGreedy:
    """Greedy and a beam in one search; `BeamWithGreedy.joins` says for which two that is possible."""

    def __init__(self, greedy: Beam, beam: Beam) -> None:
        self._greedy, self._beam, self.name = greedy, beam, f"{greedy.name} and {beam.name}"

    def propose(self, scene: Scene, budget: Budget) -> list[Proposal]:
        return self._beam.propose_with_greedy(scene, budget, self._greedy)

    @staticmethod
    def joins(greedy: object, beam: object) -> bool:
        """Whether the second's slot 1 is the first."""
        if not (isinstance(greedy, Beam) and isinstance(beam, Beam)) or greedy.width != 1 or greedy.keep != 1:
            return False
        return greedy.like(beam)


def _widened(made: list[Proposal], columns: Int64) -> list[Proposal]:
    """Proposals over some columns as proposals over all."""
    return [Proposal(columns[one.picks].astype(np.int32), one.generator, exact=one.exact) for one in made]


def take(scores: Float64, slots: Int64, width: int) -> tuple[Int64, Int64, Int64]:
    """Children by the monotone rule.

    Args:
        scores: [n, C] of each candidate behind each list, -inf where it is not allowed.
        slots: [n], of the lists, ascending.
        width: B.

    Returns:
        Parents (rows of `scores`), items and slots [n'] of the children, by slot. Of equal scores the lower
        candidate is taken first, then the lower slot.
    """
    scores = scores.copy()  # what was taken is struck out
    firsts = scores.argmax(axis=1)
    heap: list[tuple[float, int, int]] = []
    entering = dict(zip(slots.tolist(), range(len(slots)), strict=True))
    taken: list[tuple[int, int, int]] = []
    for slot in range(width):
        row = entering.get(slot)
        if row is not None:
            _push(heap, scores, row, int(firsts[row]))
        elif not heap:
            if slot > slots[-1]:
                break
            continue
        if heap:
            _, item, row = heapq.heappop(heap)
            taken.append((row, item, slot))
            scores[row, item] = -np.inf
            _push(heap, scores, row, int(scores[row].argmax()))
    columns = np.array(taken, dtype=np.int64).reshape(-1, 3).T
    return columns[0], columns[1], columns[2]


def _push(heap: list[tuple[float, int, int]], scores: Float64, row: int, item: int) -> None:
    score = float(scores[row, item])
    if score > -np.inf:
        heapq.heappush(heap, (-score, item, row))


def remaining(value: Float64, lists: Int32, left: int) -> Float64:
    """Sum of the best `left` values that neither a list nor the candidate uses.

    Args:
        value: [C], descending.
        lists: [B, t].

    Returns:
        [B, C].
    """
    B, C = len(lists), len(value)
    free = np.ones((B, C), dtype=bool)
    np.put_along_axis(free, lists.astype(np.int64), False, axis=1)
    rank = np.cumsum(free, axis=1) - 1  # of each free candidate among the free ones
    inside = free & (rank < left)
    total = np.where(inside, value, 0.0).sum(axis=1)
    after = np.where(free & (rank == left), value, 0.0).sum(axis=1)  # enters if one of the others is used
    rest: Float64 = np.where(inside, total[:, None] - value + after[:, None], total[:, None])
    return rest
