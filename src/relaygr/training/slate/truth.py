"""What lists are worth in a world: closed form, oracle search and regret.

Two independent forms: `watched` reads a whole list at once, `Walkers` goes position by position for all
candidates behind many lists, as searches need it. Tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from relaygr.listwise.arrays import Bool, Float32, Float64, Int32, Int64
from relaygr.listwise.lists import survivals
from relaygr.listwise.pool import sigmoid
from relaygr.listwise.step import hazard
from relaygr.training.slate.world import Requests, WorldConfig

CREDIT = 0.3  # what a search expects of each free position
_CHUNK = 250  # requests searched at once


@dataclass(frozen=True, slots=True)
class Truth:
    """Of lists [..., L]: probabilities of watching and of leaving behind the picks before."""

    watch: Float64
    leave: Float64

    @property
    def utility(self) -> Float64:
        """U = sum of s_t p_t. [...]"""
        utility: Float64 = (survivals(self.leave) * self.watch).sum(-1)
        return utility


def watched(requests: Requests, lists: Int32) -> Truth:
    """The truth about lists int32 [N, G, L] or [N, L] of columns of the candidates."""
    if lists.ndim == 2:
        found = watched(requests, lists[:, None])
        return Truth(found.watch[:, 0], found.leave[:, 0])
    config, world = requests.world.config, requests.world
    N, _, L = lists.shape
    rows = np.arange(N)[:, None, None]
    items = requests.items[rows, lists]  # [N, G, L]
    before = np.tri(L, k=-1, dtype=bool)  # [t, r]: r is earlier
    back = np.arange(L)[:, None] - np.arange(L)[None, :]
    logits = requests.theta[rows, lists].astype(np.float64)
    topics = world.topics[items]
    same = (topics[..., :, None] == topics[..., None, :]) & before
    if config.similarity:
        vectors = world.vectors[items]
        near = before & (back <= config.window)
        cosine = np.where(near, vectors @ vectors.swapaxes(-1, -2), 0.0)
        logits -= config.similarity * np.maximum(cosine.max(-1), 0.0)
    logits -= config.repetition * same.sum(-1)
    logits -= config.fatigue * (np.arange(L) / config.length)
    if config.author:
        authors = world.authors[items]
        met = (authors[..., :, None] == authors[..., None, :]) & before & (back <= config.author_window)
        logits -= config.author * met.any(-1)
    watch = sigmoid(logits)
    return Truth(watch, _leave(config, watch, same.any(-1)))


def _leave(config: WorldConfig, watch: Float64, shown: Bool) -> Float64:
    if not config.exit:
        return np.zeros(watch.shape)
    return hazard(config.exit_base + config.exit_value * (1.0 - watch) + config.exit_repeat * shown)


@dataclass(frozen=True, slots=True)
class State:
    """What the lists so far leave behind, by request and beam; [N, B, ...].

    Attributes:
        ring: float32 [N, B, window, C], cosines to the last picks.
        counts: float32 [N, B, C], picks of the candidate's topic.
        author: float32 [N, B, C], position of the last pick by the candidate's author; far below 0 if none.
        free: bool [N, B, C].
        utility, survival: float64 [N, B].
        lists: int32 [N, B, t].
    """

    ring: Float32
    counts: Float32
    author: Float32
    free: Bool
    utility: Float64
    survival: Float64
    lists: Int32


class Walkers:
    """All lists of some requests, one position after the other."""

    def __init__(self, requests: Requests) -> None:
        self._requests, self.config = requests, requests.world.config
        world, items = requests.world, requests.items
        vectors = world.vectors[items]
        self._cosine = vectors @ vectors.swapaxes(1, 2)  # [N, C, C]
        self._topics, self._authors = world.topics[items], world.authors[items]
        self._theta = requests.theta.astype(np.float64)[:, None]  # [N, 1, C]

    def start(self) -> State:
        N, C = self._requests.items.shape
        return State(
            np.zeros((N, 1, self.config.window, C), dtype=np.float32),
            np.zeros((N, 1, C), dtype=np.float32),
            np.full((N, 1, C), -1e6, dtype=np.float32),
            np.ones((N, 1, C), dtype=bool),
            np.zeros((N, 1)),
            np.ones((N, 1)),
            np.zeros((N, 1, 0), dtype=np.int32),
        )

    def truth(self, state: State) -> Truth:
        """Of every candidate at the next position of every list. [N, B, C]"""
        config, t = self.config, state.lists.shape[2]
        logits = self._theta - config.similarity * state.ring.max(2)  # zeros of the ring bound it from below
        logits = logits - config.repetition * state.counts - config.fatigue * t / config.length
        if config.author:
            logits -= config.author * (t - state.author <= config.author_window)
        watch = sigmoid(logits)
        return Truth(watch, _leave(config, watch, state.counts > 0))

    def step(self, state: State, parents: Int64, items: Int64, utility: Float64, survival: Float64) -> State:
        """Lists `parents` [N, B'], each with `items` [N, B'], now worth `utility` and going on `survival`."""
        n, t = np.arange(len(parents))[:, None], state.lists.shape[2]
        ring = state.ring[n, parents].copy()
        ring[:, :, t % self.config.window] = np.maximum(self._cosine[n, items], 0.0)
        free = state.free[n, parents]
        np.put_along_axis(free, items[..., None], False, axis=2)
        same_topic = self._topics[:, None] == self._topics[n, items][..., None]
        same_author = self._authors[:, None] == self._authors[n, items][..., None]
        author = np.where(same_author, np.float32(t), state.author[n, parents])
        lists = np.concatenate([state.lists[n, parents], items[..., None].astype(np.int32)], axis=2)
        return State(ring, state.counts[n, parents] + same_topic, author, free, utility, survival, lists)


def oracle_beam(requests: Requests, width: int, credit: float = CREDIT) -> Int32:
    """Lists by a beam that knows the truth, by the monotone rule; int32 [N, L] of the best true U found."""
    parts = [_oracle(part, width, credit) for part in requests.chunks(_CHUNK)]
    return np.concatenate(parts)


def _oracle(requests: Requests, width: int, credit: float) -> Int32:
    walkers, L = Walkers(requests), requests.world.config.length
    state = walkers.start()
    n = np.arange(len(requests))
    for t in range(L):
        truth = walkers.truth(state)
        B, C = truth.watch.shape[1:]
        gain = state.utility[..., None] + state.survival[..., None] * truth.watch
        onward = state.survival[..., None] * (1.0 - truth.leave)
        scores = np.where(state.free, gain + onward * (credit * (L - t - 1)), -np.inf)
        flat = scores.reshape(len(n), B * C)
        chosen = list[Int64]()
        for slot in range(width):
            # Slot j is filled from the children of the first j lists: what it holds does not depend on width.
            seen = flat[:, : min(slot + 1, B) * C]
            best = seen.argmax(axis=1)
            if np.isneginf(seen[n, best]).any():  # fewer lists than slots, for all requests alike
                break
            flat[n, best] = -np.inf
            chosen.append(best)
        parents, items = np.divmod(np.stack(chosen, axis=1), C)
        at = n[:, None]
        state = walkers.step(state, parents, items, gain[at, parents, items], onward[at, parents, items])
    best = state.utility.argmax(axis=1)
    lists: Int32 = state.lists[n, best]
    return lists


def regret(requests: Requests, lists: Int32, width: int = 8) -> Float64:
    """What lists [N, L] lose against the oracle's beam; below 0 where they beat its search. [N]"""
    best = watched(requests, oracle_beam(requests, width)).utility
    return best - watched(requests, lists).utility


Policy = Callable[[Requests], Int32]  # lists [N, L] of columns of the candidates
