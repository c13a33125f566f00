"""What a world's users leave in the logs: lists drawn by Plackett-Luce, watched until they leave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relaygr.listwise.arrays import Bool, Float64, Int32
from relaygr.listwise.pool import sigmoid
from relaygr.training.slate.logs import Exposures, LoggedLists
from relaygr.training.slate.truth import Truth, watched
from relaygr.training.slate.world import HEADS, Requests

TEMPERATURE = 0.1  # of exploration, in the ranker's logits


@dataclass(frozen=True, slots=True)
class Sampled:
    """Logs, and the lists behind them as columns of the candidates, int32 [N, L]."""

    logs: LoggedLists
    lists: Int32


def plackett_luce(requests: Requests, seed: int, temperature: float = TEMPERATURE) -> tuple[Int32, Float64]:
    """Lists [N, L] and the log-probability of each pick behind those before it [N, L].

    One Gumbel key an item is exact here, as no rule bars anything.
    """
    random = np.random.default_rng((requests.world.config.seed, 2, seed))
    scores = requests.logits.astype(np.float64) / temperature
    keys = scores + random.gumbel(size=scores.shape)
    lists = np.argsort(-keys, axis=1)[:, : requests.world.config.length].astype(np.int32)
    return lists, list_propensities(scores, lists)


def list_propensities(scores: Float64, lists: Int32) -> Float64:
    """Log-probabilities of picks under softmax(scores [N, C]) without replacement; lists [N, L] -> [N, L]."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    rows = np.arange(len(lists))
    free = np.ones(shifted.shape, dtype=bool)
    logs = np.empty(lists.shape)
    for t in range(lists.shape[1]):
        left = np.where(free, shifted, -np.inf)
        top = left.max(axis=1, keepdims=True)
        total = top[:, 0] + np.log(np.exp(left - top).sum(axis=1))
        logs[:, t] = shifted[rows, lists[:, t]] - total
        free[rows, lists[:, t]] = False
    return logs


def watch_lists(
    requests: Requests, lists: Int32, seed: int, log_propensity: Float64 | None = None
) -> Sampled:
    """Users watch lists [N, L] until they leave; labels behind that are NaN. No next page is asked for."""
    config, world = requests.world.config, requests.world
    random = np.random.default_rng((config.seed, 3, seed))
    truth = watched(requests, lists)
    N, L = lists.shape
    seen = truth.watch
    if config.position_bias:
        looked = np.arange(L) / max(L - 1, 1)
        seen = sigmoid(np.log(seen) - np.log1p(-seen) - config.position_bias * looked)
    labels = (random.random((N, L)) < seen).astype(np.float32)
    leaves = random.random((N, L)) < truth.leave
    leaves[:, -1] = True  # no more positions
    consumed = leaves.argmax(axis=1) + 1
    labels[np.arange(L) >= consumed[:, None]] = np.nan
    rows = np.arange(N)[:, None]
    items = requests.items[rows, lists]
    zeros = np.zeros(N, dtype=np.int64)
    logs = LoggedLists(
        heads=HEADS,
        users=requests.users,
        items=items.astype(np.int64),
        outputs=requests.logits[rows, lists][..., None],
        labels=labels[..., None],
        attributes={"topic": world.topics[items], "author": world.authors[items]},
        vectors=world.vectors[items],
        shown=np.full(N, L, dtype=np.int64),
        consumed=consumed.astype(np.int64),
        more=np.zeros(N, dtype=bool),
        asked=np.full(N, config.length, dtype=np.int64),
        surface=zeros,
        page=zeros,
        session=zeros,
        log_propensity=np.full((N, L), np.nan) if log_propensity is None else log_propensity,
    )
    return Sampled(logs, lists)


def explored_logs(requests: Requests, seed: int, temperature: float = TEMPERATURE) -> Sampled:
    """Lists drawn by Plackett-Luce and watched."""
    lists, logs = plackett_luce(requests, seed, temperature)
    return watch_lists(requests, lists, seed, logs)


def random_exposures(requests: Requests, seed: int, each: int = 1) -> Exposures:
    """`each` candidates of every request, drawn evenly and shown by themselves."""
    random = np.random.default_rng((requests.world.config.seed, 4, seed))
    columns = np.argsort(random.random(requests.items.shape), axis=1)[:, :each]
    rows = np.arange(len(requests))[:, None]
    watch = sigmoid(requests.theta[rows, columns].astype(np.float64))
    labels = (random.random(watch.shape) < watch).astype(np.float32)
    return Exposures(
        requests.logits[rows, columns].reshape(-1, 1), labels.reshape(-1, 1), np.repeat(requests.users, each)
    )


def realised(truth: Truth, random: np.random.Generator) -> Float64:
    """One draw of what lists [N, L] bring: items watched before the user leaves. [N]"""
    labels = random.random(truth.watch.shape) < truth.watch
    leaves = random.random(truth.leave.shape) < truth.leave
    there: Bool = np.cumsum(leaves, axis=1) - leaves == 0
    got: Float64 = (labels & there).sum(axis=1).astype(np.float64)
    return got
