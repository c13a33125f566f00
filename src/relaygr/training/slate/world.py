"""A world whose users we know: items, tastes, and how a list changes what they watch.

For user x and item i at position t behind the picks S,

    logit of watching = taste * <x, y_i> + b_i - offset
        - similarity * max(0, largest cosine of i to the last `window` picks)
        - repetition * (picks of i's topic) - fatigue * t / L
        - author * [i's author is in the last `author_window` picks]
    logit of leaving = exit_base + exit_value * (1 - p) + exit_repeat * [i's topic was shown]

An effect of 0 is switched off. The ranker knows the first line up to normal noise. With `drift`, users like
other items than when the ranker was made; with `position_bias`, logs show less watching further down than
there is (a user who never looked), while values and exits are those of the formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from relaygr.config.limits import Range, Section
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Bool, Float32, Float64, Int32, Int64
from relaygr.listwise.pool import Head, Pool
from relaygr.listwise.value import Factor, Term, ValueDocument, ValueFunction

HEADS = (Head("watch"),)
DOCUMENT = ValueDocument(id="watched", terms=(Term(weight=1.0, factors=(Factor(head="watch"),)),))
VALUE = ValueFunction(DOCUMENT, HEADS)

_CHUNK = 1000  # requests whose candidates are drawn at once


class WorldConfig(Section, frozen=True, kw_only=True):
    """What holds in a world; the defaults are its reference form.

    Attributes:
        items, topics, authors, width: of the catalogue; `width` is the length of vectors.
        spread: of item vectors about the centre of their topic.
        bias: standard deviation of b_i.
        tastes: topics of one user.
        candidates, length: C and L of a request; half of the candidates are of the user's topics.
        noise: standard deviation of the ranker's error.
        window: picks that similarity looks back at.
        exit: whether users leave.
        position_bias: what logged watching loses on the way from the first position to the last, in logits.
        drift: standard deviation of what was added to b_i after the ranker was made.
    """

    PATH: ClassVar[str] = "world"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "items": Range(2, 1_000_000),
        "topics": Range(1, 10_000),
        "authors": Range(1, 1_000_000),
        "width": Range(1, 1024),
        "spread": Range(0, 10),
        "bias": Range(0, 10),
        "tastes": Range(1, 100),
        "candidates": Range(1, 10_000),
        "length": Range(1, 500),
        "taste": Range(0, 100),
        "noise": Range(0, 10),
        "similarity": Range(0, 100),
        "window": Range(1, 500),
        "repetition": Range(0, 100),
        "fatigue": Range(0, 100),
        "author": Range(0, 100),
        "author_window": Range(1, 500),
        "exit_value": Range(0, 100),
        "exit_repeat": Range(0, 100),
        "position_bias": Range(0, 100),
        "drift": Range(0, 10),
        "seed": Range(0, 2**63 - 1),
    }

    items: int = 3000
    topics: int = 40
    authors: int = 600
    width: int = 16
    spread: float = 0.25
    bias: float = 0.5
    tastes: int = 4
    candidates: int = 80
    length: int = 10
    taste: float = 1.2
    offset: float = 0.5
    noise: float = 0.6
    similarity: float = 1.0
    window: int = 3
    repetition: float = 0.25
    fatigue: float = 0.0
    author: float = 0.0
    author_window: int = 3
    exit: bool = True
    exit_base: float = -2.5
    exit_value: float = 2.0
    exit_repeat: float = 0.5
    position_bias: float = 0.0
    drift: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length > self.candidates:
            raise ConfigError("world.length", f"{self.length} is above candidates {self.candidates}")
        if self.tastes > self.topics:
            raise ConfigError("world.tastes", f"{self.tastes} is above topics {self.topics}")

    @property
    def order_blind(self) -> bool:
        """Whether a list is worth the same in any order."""
        effects = (self.similarity, self.repetition, self.fatigue, self.author, self.exit)
        return not any(effects)


@dataclass(frozen=True, slots=True)
class Requests:
    """N requests with all that is true of them; candidates are in the order of the caller.

    Attributes:
        world: where they are from.
        users: int64 [N].
        items: int32 [N, C].
        theta: float32 [N, C], logits of watching without any context.
        logits: float32 [N, C], what the ranker says.
    """

    world: World
    users: Int64
    items: Int32
    theta: Float32
    logits: Float32

    def __len__(self) -> int:
        """N."""
        return len(self.users)

    def select(self, rows: Int64 | slice) -> Requests:
        return replace(
            self,
            users=self.users[rows],
            items=self.items[rows],
            theta=self.theta[rows],
            logits=self.logits[rows],
        )

    def chunks(self, rows: int) -> list[Requests]:
        """The same, `rows` at a time."""
        return [self.select(slice(first, first + rows)) for first in range(0, len(self), rows)]

    def vectors(self, n: int) -> Float32:
        """Of the candidates of request n. [C, Dv]"""
        found: Float32 = self.world.vectors[self.items[n]]
        return found

    def pool(self, n: int) -> Pool:
        """Request n as the list layer gets it."""
        items = self.items[n]
        return Pool(
            ids=items.astype(np.int64),
            heads=HEADS,
            outputs=self.logits[n][:, None],
            attributes={"topic": self.world.topics[items], "author": self.world.authors[items]},
            vectors=self.world.vectors[items],
        )

    def pointwise(self) -> Int32:
        """The pointwise list of each request, as columns of the candidates. [N, L]"""
        order = np.argsort(-self.logits, axis=1, kind="stable")
        return order[:, : self.world.config.length].astype(np.int32)


class World:
    """The catalogue. Immutable; all randomness is from the configuration's seed.

    Attributes:
        vectors: float32 [items, Dv] of unit length.
        topics, authors: int64 [items].
        bias: float64 [items], b_i when the ranker was made; `now` those of today.
    """

    def __init__(self, config: WorldConfig | None = None) -> None:
        config = config or WorldConfig()
        self.config = config
        random = np.random.default_rng((config.seed, 0))
        self.centres = _unit(random.standard_normal((config.topics, config.width)))
        self.topics = (np.arange(config.items) % config.topics).astype(np.int64)
        around = config.spread * random.standard_normal((config.items, config.width))
        self.vectors = _unit(self.centres[self.topics] + around).astype(np.float32)
        self.bias = config.bias * random.standard_normal(config.items)
        self.now = self.bias + config.drift * random.standard_normal(config.items)
        self.authors = random.integers(0, config.authors, config.items)

    def requests(self, n: int, seed: int, users: int | None = None) -> Requests:
        """n requests of `users` users in turn, by default one each; equal seeds give equal requests."""
        config = self.config
        random = np.random.default_rng((config.seed, 1, seed))
        people = n if users is None else min(users, n)
        liked = np.argsort(random.random((people, config.topics)), axis=1)[:, : config.tastes]
        mix = random.dirichlet(np.ones(config.tastes), people)
        tastes = _unit(np.einsum("nk,nkd->nd", mix, self.centres[liked]))
        mine = np.zeros((people, config.topics), dtype=bool)
        np.put_along_axis(mine, liked, True, axis=1)
        owner = np.arange(n) % people
        items = np.concatenate(
            [self._candidates(mine[owner[at : at + _CHUNK]], random) for at in range(0, n, _CHUNK)]
        )
        match = np.einsum("nd,ncd->nc", tastes[owner], self.vectors[items]).astype(np.float64)
        known = config.taste * match - config.offset
        noise = config.noise * random.standard_normal(items.shape)
        return Requests(
            self,
            owner.astype(np.int64) + seed * 10_000_000,
            items,
            (known + self.now[items]).astype(np.float32),
            (known + self.bias[items] + noise).astype(np.float32),
        )

    def _candidates(self, mine: Bool, random: np.random.Generator) -> Int32:
        """Half from the user's topics and half from the others, shuffled; bool [n, topics] -> [n, C]"""
        config = self.config
        keys = random.random((len(mine), config.items), dtype=np.float32)
        inside = mine[:, self.topics]
        half = config.candidates // 2
        wanted = ((inside, half), (~inside, config.candidates - half))
        # What one side lacks (a small world) comes from the other: its keys are above 2 and come last.
        parts = []
        taken = np.zeros(keys.shape, dtype=bool)
        for side, count in wanted:
            ranked = np.where(taken, np.float32(9), np.where(side, keys, keys + np.float32(2)))
            columns = np.argpartition(ranked, max(count - 1, 0), axis=1)[:, :count]
            np.put_along_axis(taken, columns, True, axis=1)
            parts.append(columns)
        return random.permuted(np.concatenate(parts, axis=1), axis=1).astype(np.int32)


def _unit(vectors: Float64) -> Float64:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: Float64 = vectors / np.maximum(lengths, 1e-12)
    return scaled
