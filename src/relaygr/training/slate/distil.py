"""Distillation of `one_shot`: a scorer learns which lists of a pool an evaluator likes.

Per request there are G lists with rewards rho_g. Targets are softmax((rho_g - mean) / (tau * std)); the
loss is the cross-entropy between them and the likelihood of the lists under Plackett-Luce on the scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from relaygr.config.limits import Range, Section
from relaygr.core.clock import ManualClock
from relaygr.core.errors import ConfigError
from relaygr.listwise.arrays import Bool, Float32, Float64, Int64
from relaygr.listwise.ballot import Ballot, stack
from relaygr.listwise.context import same_values
from relaygr.listwise.evaluate import Evaluator
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.one_shot import OneShot, OneShotConfig
from relaygr.listwise.generators.pointwise import NAME as POINTWISE
from relaygr.listwise.lists import ListModel
from relaygr.listwise.proposal import Budget, Generator, Proposal
from relaygr.listwise.scene import Scene
from relaygr.listwise.trust import Region, Trust
from relaygr.training.slate.one_shot_net import OneShotNet, list_likelihood

_LAST_RATE = 0.02  # of the learning rate, reached at the end
_SPREAD = 1e-9  # rewards of a request that differ by less are the same


class Distillation(Section, frozen=True, kw_only=True):
    """How a scorer is distilled.

    Attributes:
        tau: of the targets, in standard deviations of a request's rewards.
        epochs: of Adam; 0 for 40,000 / requests, within 20 and 80.
        learning_rate, batch_requests: of Adam.
        seed: of first weights and of the order of requests.
    """

    PATH: ClassVar[str] = "distillation"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "tau": Range(0, 100, open_low=True),
        "epochs": Range(0, 10_000),
        "learning_rate": Range(0, 10, open_low=True),
        "batch_requests": Range(1, 1_000_000),
        "seed": Range(0, 2**32 - 1),
    }

    tau: float = 0.2
    epochs: int = 0
    learning_rate: float = 3e-3
    batch_requests: int = 64
    seed: int = 0

    def epochs_for(self, requests: int) -> int:
        """Passes over so many requests."""
        return self.epochs or min(max(round(40_000 / requests), 20), 80)


@dataclass(frozen=True, slots=True)
class Pools:
    """Candidates of N requests as the scorer sees them.

    Attributes:
        regions: where lists may be, with the candidates.
        inputs: float32 [N, m, P]; standard: float32 [N, m]; cosine: float32 [N, m, m].
        same: bool [N, attributes, m, m], equal values.
        there: bool [N, m]; requests with fewer candidates than m are filled up.
    """

    regions: Sequence[Region]
    inputs: Float32
    standard: Float32
    cosine: Float32
    same: Bool
    there: Bool

    def __len__(self) -> int:
        """N."""
        return len(self.inputs)


@dataclass(frozen=True, slots=True)
class Lessons:
    """Lists with rewards.

    Attributes:
        lists: int64 [N, G, L], columns.
        reward: float64 [N, G]; -inf for lists that do not count.
    """

    lists: Int64
    reward: Float64

    def targets(self, tau: float) -> Float64:
        """softmax((reward - mean) / (tau * std)) over the lists of each request that count. [N, G]"""
        there = np.isfinite(self.reward)
        count = np.maximum(there.sum(1, keepdims=True), 1)
        reward = np.where(there, self.reward, 0.0)
        mean = reward.sum(1, keepdims=True) / count
        spread = np.sqrt((np.where(there, reward - mean, 0.0) ** 2).sum(1, keepdims=True) / count)
        scaled = np.where(there, (reward - mean) / (tau * np.maximum(spread, _SPREAD)), -np.inf)
        top = scaled.max(1, keepdims=True)
        shares = np.where(there, np.exp(scaled - np.where(np.isfinite(top), top, 0.0)), 0.0)
        made: Float64 = shares / np.maximum(shares.sum(1, keepdims=True), 1e-300)
        return made


def teachers(model: ListModel, top: int, similarity: bool = True) -> list[Generator]:
    """What fills the pools: a wide beam with all of its lists, greedy, and with vectors MMR."""
    beams = [Beam(model, 1, top), Beam(model, 8, top, keep=8)]
    return [*beams, Mmr(trade=0.5), Mmr(trade=0.7)] if similarity else [*beams]


def make_pools(scenes: Sequence[Scene], config: OneShotConfig) -> Pools:
    """Candidates of scenes that have their fallbacks, inside their trust regions, as the scorer sees them.

    Raises:
        ConfigError: there are no scenes, their lengths differ, or rules bar lists.
    """
    lengths = {scene.length for scene in scenes}
    if len(lengths) != 1:
        raise ConfigError("requests", f"lists of the lengths {sorted(lengths)}; one length is needed")
    scorer = OneShot.zero(config)
    regions, parts = [Trust(config.top).region(scene) for scene in scenes], []
    for region in regions:
        scene = region.scene
        inputs, standard = scorer.inputs(scene)
        C = len(scene)
        cosine = scene.cosine if config.similarity else np.zeros((C, C))
        attributes = scene.pool.attributes
        same = [same_values(attributes[name], attributes[name]) for name in config.attributes]
        equal = np.array(same, dtype=bool).reshape(len(same), C, C)
        parts.append((inputs, standard, cosine, equal, np.ones(C, dtype=bool)))
    m, columns = max(len(each[0]) for each in parts), list(zip(*parts, strict=True))
    return Pools(
        regions,
        _filled(columns[0], (m,), np.float32),
        _filled(columns[1], (m,), np.float32),
        _filled(columns[2], (m, m), np.float32),
        _filled(columns[3], (len(config.attributes), m, m), np.bool_),
        _filled(columns[4], (m,), np.bool_),
    )


def taught(pools: Pools, generators: Sequence[Generator], evaluator: Evaluator) -> Lessons:
    """Lists of generators, and the fallbacks, with the evaluator's rewards."""
    free, found, rewards = Budget(ManualClock()), [], []
    for region in pools.regions:
        assert region.scene.fallback is not None
        ballot = Ballot(region.scene)
        ballot.add([Proposal(region.scene.fallback, POINTWISE)])
        for generator in generators:
            made = generator.propose(region.scene, free)
            ballot.add(one for one in made if region.holds(one.picks))
        lists = stack(ballot.proposals)
        found.append(lists)
        rewards.append(evaluator.evaluate(region.scene, lists).mean(0))
    G = max(len(each) for each in found)
    # Lists that fill up are copies without a share.
    filled = [np.concatenate([each, np.repeat(each[:1], G - len(each), 0)]) for each in found]
    return Lessons(np.stack(filled).astype(np.int64), _filled(rewards, (G,), np.float64, -np.inf))


def distil(
    config: OneShotConfig, pools: Pools, lessons: Lessons, training: Distillation | None = None
) -> OneShot:
    """Fit a scorer to lists; equal inputs and seeds give equal weights on one machine."""
    training = training or Distillation()
    net = OneShotNet(OneShot.zero(config, training.seed))
    inputs, standard, cosine, same, there = (
        torch.from_numpy(each)
        for each in (pools.inputs, pools.standard, pools.cosine, pools.same, pools.there)
    )
    lists = torch.from_numpy(lessons.lists)
    targets = torch.from_numpy(lessons.targets(training.tau).astype(np.float32))
    epochs = training.epochs_for(len(pools))
    steps = epochs * -(-len(pools) // training.batch_requests)
    adam = torch.optim.Adam(net.parameters(), lr=training.learning_rate)
    slower = torch.optim.lr_scheduler.LinearLR(adam, 1.0, _LAST_RATE, steps)
    order = torch.Generator().manual_seed(training.seed)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(pools), generator=order), training.batch_requests):
            scores, repulsion = net(inputs[rows], standard[rows], cosine[rows], there[rows])
            likelihood = list_likelihood(
                scores, repulsion, cosine[rows], same[rows], lists[rows], config.window
            )
            loss = -(targets[rows] * likelihood).sum(1).mean()
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            adam.step()
            slower.step()
    return net.model()


def _filled(
    parts: Sequence[npt.NDArray[Any]], shape: tuple[int, ...], kind: Any, fill: float = 0.0
) -> npt.NDArray[Any]:
    """Arrays of different first sizes as one; `shape` are the sizes to fill up to."""
    rest = parts[0].shape[len(shape) :]
    made = np.full((len(parts), *shape, *rest), fill, dtype=kind)
    for row, part in zip(made, parts, strict=True):
        row[tuple(slice(0, size) for size in part.shape)] = part
    return made
