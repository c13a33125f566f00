"""Whole lists under the step model, with every part of their value: evaluation and explanation share it.

U = sum over positions of s_t * V_t with s_1 given and s_{t+1} = s_t * (1 - e_t), in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.context import Context
from relaygr.listwise.errors import SlateNanError
from relaygr.listwise.list_context import ListContext
from relaygr.listwise.masks import Walk
from relaygr.listwise.scene import Scene
from relaygr.listwise.step import StepModel, hazard
from relaygr.listwise.value import ValueFunction


@dataclass(frozen=True, slots=True)
class ListValues:
    """What the step model says of G lists.

    Attributes:
        context: [G, F, L], the features of each pick.
        base: [K, G, L], outputs of the ranker.
        terms: [groups, K + 1, G, L], what each group adds to each head and to the exit.
        conditional: [K, G, L], logits and positive values behind the context.
        exit_heads: [G, L], what conditional outputs add to the logit of the exit; zero without such a net.
        exit_logit: [L], biases b_t.
        price: [G, L], taken by soft rules.
        value: [G, L], V_t behind the context, less the price.
        hazard: [G, L], e_t.
        survival: [G, L], s_t.
        utility: [G], U.
    """

    context: Float64
    base: Float64
    terms: Float64
    conditional: Float64
    exit_heads: Float64
    exit_logit: Float64
    price: Float64
    value: Float64
    hazard: Float64
    survival: Float64
    utility: Float64

    def one(self, g: int) -> ListValues:
        """Those of list g alone (G = 1)."""
        of = slice(g, g + 1)
        return ListValues(
            self.context[of],
            self.base[:, of],
            self.terms[:, :, of],
            self.conditional[:, of],
            self.exit_heads[of],
            self.exit_logit,
            self.price[of],
            self.value[of],
            self.hazard[of],
            self.survival[of],
            self.utility[of],
        )


class ListModel:
    """A step model and a value function, for whole lists.

    Raises:
        ConfigError: the two are of different heads.
    """

    def __init__(self, step: StepModel, value: ValueFunction) -> None:
        if step.heads != value.heads:
            raise ConfigError(
                "heads", f"the step model's {step.heads} are not the value function's {value.heads}"
            )
        self.step, self.value = step, value

    def context(self, scene: Scene) -> Context:
        """The tables of a request; made once a scene."""
        make = partial(Context, self.step.features, scene, self.step.config.watch_head)
        return scene.once((Context, self), make)

    def __call__(self, scene: Scene, picks: Int32) -> ListValues:
        """Values of lists int32 [G, L]; a list's do not depend on the others.

        Raises:
            SlateNanError: something is not finite.
            RequestError: as `Context`.
        """
        step, (G, L) = self.step, picks.shape
        K = len(step.heads)
        rows = ListContext(self.context(scene), scene).rows(picks)
        terms = np.zeros((len(step.nets), K + 1, G, L))
        for at, net in enumerate(step.nets):
            terms[at] = net(rows).transpose(1, 0, 2)
        sums = terms.sum(0)  # [K + 1, G, L]
        base = scene.pool.outputs[picks].transpose(2, 0, 1).astype(np.float64, order="C")
        conditional = step.conditional(base, sums[:K])
        price = prices(scene.walk, picks)
        value = self.value(step.natural(conditional)) - price
        exit_heads, biases = np.zeros((G, L)), np.zeros(L)
        leave = np.zeros((G, L))
        if step.config.exit:
            biases = np.array([step.exit_bias_at(t) for t in range(L)])
            term = step.exit_term(np.ascontiguousarray(conditional.transpose(1, 0, 2)))
            exit_heads = exit_heads if term is None else term
            leave = hazard(biases + sums[K] + exit_heads)
        survival = survivals(leave, first_survival(scene))
        utility = np.add.accumulate(survival * value, axis=1)[:, -1]  # summed in order, as readers would
        if not (np.isfinite(utility).all() and np.isfinite(leave).all()):
            raise SlateNanError("step model")
        found = ListValues(
            rows, base, terms, conditional, exit_heads, biases, price, value, leave, survival, utility
        )
        known = self._known(scene)
        for g, one in enumerate(picks):
            known[one.tobytes()] = found, g
        return found

    def utilities(self, scene: Scene, picks: Int32) -> Float64:
        """U of lists int32 [G, L]; those that were valued for this scene before are not valued again. [G]

        Raises:
            SlateNanError, RequestError: as a call.
        """
        known = self._known(scene)
        fresh = [g for g, one in enumerate(picks) if one.tobytes() not in known]
        if fresh:
            self(scene, picks[fresh])
        values = (known[one.tobytes()] for one in picks)
        return np.array([found.utility[g] for found, g in values])

    def of(self, scene: Scene, picks: Int32) -> ListValues:
        """Values of one list int32 [L] (G = 1), as they were found before if the scene knows the list."""
        known = self._known(scene).get(picks.tobytes())
        return self(scene, picks[None]) if known is None else known[0].one(known[1])

    def _known(self, scene: Scene) -> dict[bytes, tuple[ListValues, int]]:
        """Lists of a scene that were valued, and their places in what was found."""
        return scene.once((ListModel, self), dict[bytes, tuple[ListValues, int]])


def first_survival(scene: Scene) -> float:
    """s_1: the probability that the page is reached."""
    return 1.0 if scene.ask.shown is None else scene.ask.shown.survival


def survivals(leave: Float64, first: float = 1.0) -> Float64:
    """s_t of hazards e_t [..., L]: s_1 = first, s_{t+1} = s_t * (1 - e_t). [..., L]"""
    stay = np.empty_like(leave)
    stay[..., 0] = first
    stay[..., 1:] = 1.0 - leave[..., :-1]
    survival: Float64 = np.multiply.accumulate(stay, axis=-1)
    return survival


def prices(walk: Walk, picks: Int32) -> Float64:
    """What soft rules take from each pick of lists int32 [G, L]. [G, L]"""
    G, L = picks.shape
    price = np.zeros((G, L))
    if not walk.priced:
        return price
    marks = walk.start()
    parents, lists = np.zeros(G, dtype=np.int64), np.arange(G)
    for t in range(L):
        items = picks[:, t].astype(np.int64)
        at = parents if t == 0 else lists
        price[:, t] = walk.price(marks, t)[at, items]
        marks = walk.step(marks, t, at, items)
    return price
