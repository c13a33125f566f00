"""Models that are retrained on the logs of their own lists, round after round, in a world of known truth.

The ranker of such a world knows what users like (the part of the logit that does not depend on the item's
quality) and learns the quality of items from its own logs alone: shrunk residuals of consumed positions.
Items that are not shown are not learned about, so that without exploration the first good ones keep their
places and the catalogue narrows. The list layer is trained anew each round as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from relaygr.config.limits import Range, Section
from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.lists import ListModel
from relaygr.listwise.request import Mode
from relaygr.listwise.slates import Slates
from relaygr.training.slate.fit import StepTraining, train_step
from relaygr.training.slate.gain_methods import ask, proposed
from relaygr.training.slate.logs import LoggedLists
from relaygr.training.slate.said import said
from relaygr.training.slate.sampling import plackett_luce, watch_lists
from relaygr.training.slate.shapes import world_config
from relaygr.training.slate.truth import watched
from relaygr.training.slate.world import VALUE, Requests, World

_ROUND = 7_000_003  # requests of a round have seeds of their own


class SelfTraining(Section, frozen=True, kw_only=True):
    """How rounds are run.

    Attributes:
        rounds: after round 0, whose lists are all drawn at random about an untrained ranker's.
        requests: in every round.
        explore: share of requests whose lists are drawn by Plackett-Luce at `temperature`; 0 for no
            exploration.
        shrinkage: weight of "an item is like the others" against what was seen of it.
        epochs: of the step model; seed: of everything.
    """

    PATH: ClassVar[str] = "self_training"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "rounds": Range(0, 1000),
        "requests": Range(1, 1_000_000),
        "explore": Range(0, 1),
        "temperature": Range(0, 100, open_low=True),
        "shrinkage": Range(0, 1e6, open_low=True),
        "epochs": Range(0, 10_000),
        "seed": Range(0, 2**31),
    }

    rounds: int = 5
    requests: int = 1500
    explore: float = 0.2
    temperature: float = 1.0
    shrinkage: float = 2.0
    epochs: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Diversity:
    """What the lists of one round are like.

    Attributes:
        distance: mean (1 - cosine) / 2 over the pairs of a list's items, mean over lists.
        topic_entropy: of the topics of all shown items, in nats.
        catalogue_share: items that were shown at least once.
        utility: true U, mean over lists.
    """

    distance: float
    topic_entropy: float
    catalogue_share: float
    utility: float

    def kept(self, first: Diversity) -> dict[str, float]:
        """The three measures as shares of an earlier round's."""
        names = ("distance", "topic_entropy", "catalogue_share")
        return {name: getattr(self, name) / getattr(first, name) for name in names}


def self_train(world: World, settings: SelfTraining | None = None) -> list[Diversity]:
    """Diversity of round 0 and of every round behind it."""
    settings = settings or SelfTraining()
    sums = np.zeros((2, world.config.items))  # residuals and information of each item
    quality = np.zeros(world.config.items)
    model: ListModel | None = None
    found = []
    for number in range(settings.rounds + 1):
        seed = settings.seed + number
        requests = _ranked(world.requests(settings.requests, seed + _ROUND), quality)
        lists, logs = _served(requests, model, settings, seed)
        found.append(diversity(requests, lists))
        training = StepTraining(epochs=settings.epochs, allow_unexplored=True, seed=settings.seed)
        model = ListModel(train_step(world_config(), logs, training).model, VALUE)
        sums += _evidence(model, logs, quality)
        quality = sums[0] / (sums[1] + settings.shrinkage)
    return found


def diversity(requests: Requests, lists: Int32) -> Diversity:
    """Of lists [N, L] of columns of the candidates."""
    world, L = requests.world, lists.shape[1]
    items = requests.items[np.arange(len(requests))[:, None], lists]
    vectors = world.vectors[items]
    sums = vectors.sum(1, dtype=np.float64)
    cosine = ((sums * sums).sum(1) - L) / max(L * (L - 1), 1)
    topics = np.bincount(world.topics[items].reshape(-1)) / items.size
    topics = topics[topics > 0]
    return Diversity(
        distance=float(np.mean(0.5 * (1.0 - cosine))),
        topic_entropy=float(-(topics * np.log(topics)).sum()),
        catalogue_share=len(np.unique(items)) / world.config.items,
        utility=float(watched(requests, lists).utility.mean()),
    )


def _ranked(requests: Requests, quality: Float64) -> Requests:
    """The same requests by a ranker that knows the users' tastes and these qualities of items."""
    taste = requests.theta.astype(np.float64) - requests.world.now[requests.items]
    return replace(requests, logits=(taste + quality[requests.items]).astype(np.float32))


def _served(
    requests: Requests, model: ListModel | None, settings: SelfTraining, seed: int
) -> tuple[Int32, LoggedLists]:
    drawn, known = plackett_luce(requests, seed, settings.temperature)
    if model is None:
        return drawn, watch_lists(requests, drawn, seed, known).logs
    plain = Slates(VALUE, mode=Mode.OFF)
    scenes = [plain.scene(ask(requests, n), requests.pool(n)) for n in range(len(requests))]
    lists = proposed(Beam(model, 1), scenes)
    random = np.random.default_rng((settings.seed, 5, seed))
    explored = random.random(len(requests)) < settings.explore
    lists[explored] = drawn[explored]
    known = np.where(explored[:, None], known, np.nan)
    return lists, watch_lists(requests, lists, seed, known).logs


def _evidence(model: ListModel, logs: LoggedLists, quality: Float64) -> Float64:
    """Residuals of labels, given what context does, and their information, by item. [2, items]"""
    heads, _ = said(model.step, logs)
    expected, seen = heads[..., 0], logs.observed
    items = logs.items[seen]
    information = (expected * (1.0 - expected))[seen]
    # About the quality that the ranker had when it made the list, one step of Newton's.
    residual = (logs.labels[..., 0].astype(np.float64) - expected)[seen] + information * quality[items]
    size = len(quality)
    return np.stack([np.bincount(items, residual, size), np.bincount(items, information, size)])
