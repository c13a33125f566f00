"""Trained step models are right about lists they have not seen, at every position and in every context."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from relaygr.listwise.arrays import Float64
from relaygr.training.slate.fit import StepTraining, Trained, train_step
from relaygr.training.slate.rows import Rows, training_rows
from relaygr.training.slate.sampling import explored_logs
from relaygr.training.slate.shapes import world_config
from relaygr.training.slate.step_net import StepNet, hazard
from relaygr.training.slate.truth import watched
from relaygr.training.slate.world import World, WorldConfig

SEEN, UNSEEN = 1, 2
WITHIN = 0.05


def predictions(trained: Trained, rows: Rows) -> tuple[Float64, Float64]:
    """Probabilities of watching and of leaving. [R] each"""
    net = StepNet(trained.model).double()
    with torch.no_grad():
        conditional, leave = net(
            torch.from_numpy(rows.context), torch.from_numpy(rows.base), torch.from_numpy(rows.position)
        )
    return torch.sigmoid(conditional[:, 0]).numpy(), hazard(leave).numpy()


def buckets(rows: Rows, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Positions, picks of the topic, and fifths of similarity."""
    topic = rows.context[:, names.index("count:topic")]
    near = rows.context[:, names.index("similarity:max")]
    later = near[rows.position > 0]
    found = {f"position {t}": rows.position == t for t in range(10)}
    found |= {f"topic {n}": topic == n for n in range(4)}
    edges = np.quantile(later, [0.2, 0.4, 0.6, 0.8])
    cells = np.digitize(near, edges)
    return found | {f"similarity {n}": (cells == n) & (rows.position > 0) for n in range(5)}


def misses(world: World, lists: int) -> dict[str, float]:
    """Relative errors of mean probabilities, by bucket, where `lists` logged lists can tell such a mean.

    Left out are buckets whose mean label has three standard errors above what is allowed.
    """
    logs = explored_logs(world.requests(lists, SEEN), SEEN).logs
    trained = train_step(world_config(), logs)
    requests = world.requests(8000, UNSEEN)
    sampled = explored_logs(requests, UNSEEN)
    names = trained.model.features.names
    rows = training_rows(trained.model.features, sampled.logs)
    known = {
        name: int(inside.sum())
        for name, inside in buckets(training_rows(trained.model.features, logs), names).items()
    }
    truth, seen = watched(requests, sampled.lists), sampled.logs.observed
    found = {}
    for what, predicted, true in zip(
        ("watching", "leaving"),
        predictions(trained, rows),
        (truth.watch[seen], truth.leave[seen]),
        strict=True,
    ):
        for name, inside in buckets(rows, names).items():
            if not inside.any():
                continue
            mean = float(true[inside].mean())
            if 3 * np.sqrt((1 - mean) / (mean * max(known[name], 1))) < WITHIN:
                found[f"{what}, {name}"] = abs(float(predicted[inside].mean()) / mean - 1)
    return found


def test_what_is_predicted_happens_in_a_small_log() -> None:
    found = misses(World(), 6000)
    assert len(found) > 5
    assert max(found.values()) < WITHIN, found


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, {"fatigue": 0.6, "similarity": 1.5}])
def test_what_is_predicted_happens_at_every_position_and_in_every_context(change: dict[str, float]) -> None:
    found = misses(World(msgspec.structs.replace(WorldConfig(), **change)), 50_000)
    assert len(found) > 20
    assert max(found.values()) < WITHIN, found


def test_position_offsets_are_recovered_among_effects_of_lists() -> None:
    """Examination, 1 logit from the first position to the last, beside what similarity and topics do.

    Lists are so random that positions are not those of the ranker's order.
    """
    world = World(WorldConfig(position_bias=1.0, exit=False))
    logs = explored_logs(world.requests(4000, SEEN), SEEN, temperature=1.0).logs
    trained = train_step(world_config(), logs, StepTraining(epochs=40, position_control=True))
    assert trained.position is not None
    offsets, places = trained.position[0, :, 0], np.arange(10) / 9
    assert float(places @ offsets) / float(places @ places) == pytest.approx(-1.0, rel=0.1)
