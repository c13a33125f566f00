"""A trained list model as evaluator: what an ensemble of nets says whole lists are worth."""

from __future__ import annotations

from functools import partial

import numpy as np

from relaygr.core.errors import ConfigError, RequestError
from relaygr.listwise.arrays import Float64, Int32
from relaygr.listwise.context import Context
from relaygr.listwise.errors import SlateNanError
from relaygr.listwise.features import Kind
from relaygr.listwise.list_context import ListContext
from relaygr.listwise.list_net import NAME, ListNet
from relaygr.listwise.lists import first_survival, prices, survivals
from relaygr.listwise.pool import MISSING
from relaygr.listwise.scene import Scene
from relaygr.listwise.step import hazard
from relaygr.listwise.value import ValueFunction


class TrainedEvaluator:
    """U of lists by each member of a net, in closed form from per-position heads and exits, float64.

    Raises:
        ConfigError: net and value function are of different heads.
    """

    light = False

    def __init__(self, net: ListNet, value: ValueFunction) -> None:
        if net.heads != value.heads:
            raise ConfigError(
                "heads", f"the evaluator's {net.heads} are not the value function's {value.heads}"
            )
        self.net, self.value = net, value
        self.version = f"lists:{net.version}"

    def evaluate(self, scene: Scene, picks: Int32) -> Float64:
        """As `Evaluator`.

        Raises:
            SlateNanError: a value is not finite.
            RequestError: the request lacks an attribute or vectors.
        """
        features = self.net.features
        make = partial(Context, features, scene, self.net.config.watch_head)
        context = ListContext(scene.once((Context, self), make), scene).rows(picks).transpose(0, 2, 1)
        base = scene.pool.outputs[picks].astype(np.float64)  # [G, L, K]
        heads, leave = self.net(context, base, relations_of(self.net, scene, picks))
        value = np.stack([self.value(each) for each in heads])
        value = value - prices(scene.walk, picks)
        survival = survivals(hazard(leave), first_survival(scene))
        utility: Float64 = np.add.accumulate(survival * value, axis=2)[:, :, -1]
        if not np.isfinite(utility).all():
            raise SlateNanError(NAME)
        return utility

    @property
    def needs_vectors(self) -> bool:
        """Whether lists are compared by cosines or by components of vectors."""
        features = self.net.features
        read = features.has(Kind.SIMILARITY) or features.has(Kind.VECTOR)
        return read or (self.net.config.similarity and self.net.config.relation_inputs)

    @property
    def attributes(self) -> tuple[str, ...]:
        """Attributes that it reads."""
        relations = self.net.config.relations if self.net.config.relation_inputs else ()
        return tuple(dict.fromkeys((*self.net.features.attributes, *relations)))


def relations_of(net: ListNet, scene: Scene, picks: Int32) -> Float64:
    """Relations of the picks of lists int32 [G, L] among each other. [G, R, L, L]"""
    config, (G, L) = net.config, picks.shape
    if not config.relation_inputs:
        return np.zeros((G, 0, L, L))
    found = []
    if config.similarity:
        vectors = scene.unit[picks]
        found.append(vectors @ vectors.swapaxes(1, 2))
    for name in config.relations:
        if name not in scene.pool.attributes:
            raise RequestError("attributes", f"lack {name!r}, which the evaluator knows")
        values = scene.pool.attributes[name][picks]
        equal = (values[:, :, None] == values[:, None, :]) & (values != MISSING)[:, :, None]
        found.append(equal.astype(np.float64))
    found += [np.broadcast_to(each, (G, L, L)) for each in place_relations(L)]
    return np.stack(found, axis=1)


def place_relations(length: int) -> list[Float64]:
    """1 / |i - j|, 0 for i = j; and whether j is later than i. [L, L] each"""
    away = np.abs(np.arange(length)[:, None] - np.arange(length)).astype(np.float64)
    near = np.divide(1.0, away, out=np.zeros_like(away), where=away > 0)
    return [near, np.triu(np.ones((length, length)), 1)]
