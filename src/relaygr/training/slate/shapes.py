"""Shapes of step models: the default for any ranker, and those of the simulated comparisons."""

from __future__ import annotations

from collections.abc import Sequence

from relaygr.listwise.pool import Head
from relaygr.listwise.step import Group, HeadSpec, StepConfig, default_groups
from relaygr.training.slate.world import HEADS, WorldConfig

EXIT_HIDDEN = 8  # whether a user leaves depends on how good the item was
_CONTEXT = ("similarity:max", "similarity:mean", "count:topic", "position")


def default_config(
    heads: Sequence[Head], attributes: Sequence[str], similarity: bool = True, watch_head: str | None = None
) -> StepConfig:
    """Groups of `default_groups`, and an exit that sees what heads say."""
    return StepConfig(
        heads=tuple(HeadSpec(name=head.name, kind=head.kind) for head in heads),
        groups=default_groups(attributes, similarity, watch=watch_head is not None),
        watch_head=watch_head,
        exit_hidden=EXIT_HIDDEN,
    )


def world_config() -> StepConfig:
    """The default for logs of a world."""
    return default_config(HEADS, ("topic",))


def reference_config(hidden: int = 32) -> StepConfig:
    """One net over four features."""
    heads = (HeadSpec(name=HEADS[0].name),)
    return StepConfig(heads=heads, groups=(Group(name="context", features=_CONTEXT, hidden=hidden),))


def fitting_config(world: WorldConfig) -> StepConfig:
    """A net that can learn items by heart: all components of their vectors, many units."""
    vectors = tuple(f"vector:{at}" for at in range(world.width))
    group = Group(name="context", features=(*_CONTEXT, *vectors), hidden=128)
    return StepConfig(heads=(HeadSpec(name=HEADS[0].name),), groups=(group,))
