"""Distillation of `one_shot`: a scorer learns which lists of a pool an evaluator likes.

Per request there are G lists with rewards rho_g. Targets are softmax((rho_g - mean) / (tau * std)); the loss is
the cross-entropy between them and the likelihood of the lists under Plackett-Luce on the scores.
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
from relaygr.listwise.context import same_values
from relaygr.listwise.ballot import Ballot, stack
from relaygr.listwise.evaluate import Evaluator
from relaygr.listwise.generators.beam import Beam
from relaygr.listwise.generators.mmr import Mmr
from relaygr.listwise.generators.one_shot import OneShot, OneShotConfig
from relaygr.listwise.generators.pointwise import NAME as POINTWISE
from relaygr.listwise.lists import ListModel
from relaygr.listwise.proposal import Budget, Generator, Proposal
from relaygr.listwise.scene import Scene
from relaygr.listwise.trust import Trust
from relaygr.training.slate.one_shot_net import OneShotNet, list_likelihood

_SPREAD = 1e-9  # rewards of a request that differ by less are the same


class Distillation(Section, frozen=True, kw_only=True):
    """How a scorer is distilled.

    Attributes:
        tau: of the targets, in standard deviations of a request's rewards.
        epochs, learning_rate, batch_requests: of Adam.
        seed: of first weights and of the order of requests.
    """

    PATH: ClassVar[str] = "distillation"
    LIMITS: ClassVar[Mapping[str, Range]] = {
        "tau": Range(0, 100, open_low=True),
        "epochs": Range(1, 10_000),
        "learning_rate": Range(0, 10, open_low=True),
        "batch_requests": Range(1, 1_000_000),
        "seed": Range(0, 2**32 - 1),
    }

    tau: float = 0.2
    epochs: int = 40
    learning_rate: float = 3e-3
    batch_requests: int = 128
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Pools:
    """Candidates of N requests as the scorer sees them, and lists of them with rewards.

    Attributes:
        inputs: float32 [N, m, P]; standard: float32 [N, m]; cosine: float32 [N, m, m].
        same: bool [N, attributes, m, m], equal values.
        there: bool [N, m]; requests with fewer candidates than m are filled up.
        lists: int64 [N, G, L], columns.
        reward: float64 [N, G]; -inf where there are fewer than G lists.
    """

    inputs: Float32
    standard: Float32
    cosine: Float32
    same: Bool
    there: Bool
    lists: Int64
    reward: Float64

    def __len__(self) -> int:
        """N."""
        return len(self.inputs)

    def targets(self, tau: float) -> Float64:
        """Shares of the lists of each request; they sum to 1. [N, G]"""
        there = np.isfinite(self.reward)
        count = there.sum(1, keepdims=True)
        reward = np.where(there, self.reward, 0.0)
        mean = reward.sum(1, keepdims=True) / count
        spread = np.sqrt((np.where(there, reward - mean, 0.0) ** 2).sum(1, keepdims=True) / count)
        scaled = np.where(there, (reward - mean) / (tau * np.maximum(spread, _SPREAD)), -np.inf)
        shares = np.exp(scaled - scaled.max(1, keepdims=True))
        made: Float64 = shares / shares.sum(1, keepdims=True)
        return made


def teachers(model: ListModel, top: int) -> list[Generator]:
    """What fills the pools: a wide beam with all of its lists, greedy, and MMR."""
    return [Beam(model, 1, top), Beam(model, 8, top, keep=8), Mmr(trade=0.5), Mmr(trade=0.7)]


def make_pools(
    scenes: Sequence[Scene], generators: Sequence[Generator], evaluator: Evaluator, config: OneShotConfig
) -> Pools:
    """Lists and rewards inside the trust region of each scene.

    Args:
        scenes: with their fallbacks, of one length.
        evaluator: rewards are its mean over members.

    Raises:
        ConfigError: there are no scenes, or their lengths differ.
    """
    lengths = {scene.length for scene in scenes}
    if len(lengths) != 1:
        raise ConfigError("requests", f"lists of the lengths {sorted(lengths)}; one length is needed")
    scorer, free = OneShot.zero(config), Budget(ManualClock())
    parts = []
    for whole in scenes:
        region = Trust(config.top).region(whole)
        assert region.scene.fallback is not None
        ballot = Ballot(region.scene)
        ballot.add([Proposal(region.scene.fallback, POINTWISE)])
        for generator in generators:
            made = generator.propose(region.scene, free)
            ballot.add(one for one in made if region.holds(one.picks))
        lists = stack(ballot.proposals)
        reward = evaluator.evaluate(region.scene, lists).mean(0)
        inputs, standard = scorer.inputs(region.scene)
        cosine = region.scene.cosine if config.similarity else np.zeros((len(inputs), len(inputs)))
        attributes = region.scene.pool.attributes
        same = [same_values(attributes[name], attributes[name]) for name in config.attributes]
        equal = np.array(same, dtype=bool).reshape(len(same), len(inputs), len(inputs))
        parts.append((inputs, standard, cosine, equal, np.ones(len(inputs), dtype=bool), lists, reward))
    m, G = max(len(each[0]) for each in parts), max(len(each[5]) for each in parts)
    columns = list(zip(*parts, strict=True))
    return Pools(
        _filled(columns[0], (m,), np.float32),
        _filled(columns[1], (m,), np.float32),
        _filled(columns[2], (m, m), np.float32),
        _filled(columns[3], (len(config.attributes), m, m), np.bool_),
        _filled(columns[4], (m,), np.bool_),
        # Lists that fill up are copies without a share.
        np.stack([np.concatenate([each, np.repeat(each[:1], G - len(each), 0)]) for each in columns[5]]).astype(
            np.int64
        ),
        _filled(columns[6], (G,), np.float64, -np.inf),
    )


def distil(config: OneShotConfig, pools: Pools, training: Distillation | None = None) -> OneShot:
    """Fit a scorer to pools; equal inputs and seeds give equal weights on one machine."""
    training = training or Distillation()
    net = OneShotNet(OneShot.zero(config, training.seed))
    inputs, standard, cosine = (
        torch.from_numpy(each) for each in (pools.inputs, pools.standard, pools.cosine)
    )
    same, there, lists = (torch.from_numpy(each) for each in (pools.same, pools.there, pools.lists))
    targets = torch.from_numpy(pools.targets(training.tau).astype(np.float32))
    steps = training.epochs * -(-len(pools) // training.batch_requests)
    adam = torch.optim.Adam(net.parameters(), lr=training.learning_rate)
    slower = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.02, steps)
    order = torch.Generator().manual_seed(training.seed)
    for _ in range(training.epochs):
        for rows in torch.split(torch.randperm(len(pools), generator=order), training.batch_requests):
            passes = net(
                inputs[rows], standard[rows], cosine[rows], same[rows], there[rows], lists.shape[2]
            )
            # Orders carry no gradient, so that every pass learns by itself what the last one should say.
            likelihood = torch.stack([list_likelihood(scores, lists[rows]) for scores in passes]).mean(0)
            loss = -(targets[rows] * likelihood).sum(1).mean()
            adam.zero_grad()
            loss.backward()
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
