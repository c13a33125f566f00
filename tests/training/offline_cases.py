"""Small worlds of known truth whose logs are evaluated by other policies than theirs."""

from __future__ import annotations

import numpy as np

from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.pool import sigmoid
from relaygr.training.slate.offline.cascade import ModelSteps, Steps
from relaygr.training.slate.sampling import list_propensities, watch_lists
from relaygr.training.slate.truth import watched
from relaygr.training.slate.world import Requests, World, WorldConfig

SMALL = WorldConfig(items=200, topics=12, authors=20, candidates=8, length=4, repetition=0.6)
LOGGED, EVALUATED = 1.0, 0.6  # temperatures on the ranker's logits


def drawn(requests: Requests, temperature: float, seed: int) -> tuple[Int32, Float64]:
    """Plackett-Luce lists and their log-probabilities. [N, L] each"""
    scores = requests.logits.astype(np.float64) / temperature
    keys = scores + np.random.default_rng((7, seed)).gumbel(size=scores.shape)
    lists = np.argsort(-keys, axis=1)[:, : requests.world.config.length].astype(np.int32)
    return lists, list_propensities(scores, lists)


def softmax_steps(world: World, lists: int, seed: int, users: int | None = None) -> tuple[Steps, Requests]:
    """Logs of one temperature, evaluated at another; the model is the ranker, without any context."""
    requests = world.requests(lists, seed, users)
    shown, logging = drawn(requests, LOGGED, seed)
    logs = watch_lists(requests, shown, seed, logging).logs
    target = list_propensities(requests.logits / EVALUATED, shown)
    return Steps(
        requests.users,
        logs.consumed,
        np.where(logs.observed, logs.labels[..., 0], 0.0).astype(np.float64),
        logging,
        target,
        _ranker(requests, shown, EVALUATED),
    ), requests


def truth(requests: Requests, temperature: float, seed: int = 99, draws: int = 40) -> Float64:
    """Mean true utility of the first 1..L positions under a temperature. [L]"""
    total = np.zeros(requests.world.config.length)
    for number in range(draws):
        found = watched(requests, drawn(requests, temperature, seed * 1000 + number)[0])
        stay = np.cumprod(np.concatenate([np.ones((len(requests), 1)), 1 - found.leave[:, :-1]], 1), axis=1)
        total += np.cumsum(stay * found.watch, axis=1).mean(axis=0)
    return total / draws


def _ranker(requests: Requests, shown: Int32, temperature: float) -> ModelSteps:
    N, L = shown.shape
    rows = np.arange(N)
    scores = requests.logits.astype(np.float64)
    value, stay = sigmoid(scores), np.full(scores.shape, 0.85)
    free = np.ones(scores.shape, dtype=bool)
    made = {name: np.zeros((N, L)) for name in ModelSteps.__dataclass_fields__}
    best = np.argsort(-scores, axis=1, kind="stable")[:, :L]
    for t in range(L):
        masses = np.where(free, np.exp(scores / temperature), 0.0)
        share = masses / masses.sum(axis=1, keepdims=True)
        made["value"][:, t], made["stay"][:, t] = value[rows, shown[:, t]], 0.85
        made["mean_value"][:, t], made["mean_stay"][:, t] = (share * value).sum(1), (share * stay).sum(1)
        made["rest_value"][:, t], made["rest_stay"][:, t] = value[rows, best[:, t]], 0.85
        free[rows, shown[:, t]] = False
    return ModelSteps(**made)
