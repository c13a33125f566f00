"""Training negatives: items drawn by popularity, uniformly, and from the user's own recent past."""

from __future__ import annotations

import numpy as np

from relaygr.data.dataset import Int64s
from relaygr.training.catalogue import Catalogue

RECENT_EVENTS = 200
RECENT_SHARE = 0.25
UNIFORM_SHARE = 0.25


def draw_negatives(
    catalogue: Catalogue, rng: np.random.Generator, past: Int64s, visible: Int64s, count: int
) -> Int64s:
    """Items [cuts, count], drawn with replacement; some may be positives, which the caller masks.

    Args:
        past: items of the window, oldest first.
        visible: [cuts], how many of them each cut sees, at least 1.
    """
    recent, uniform = round(count * RECENT_SHARE), round(count * UNIFORM_SHARE)
    cuts = len(visible)
    back = np.minimum(visible, RECENT_EVENTS)[:, None]
    place = visible[:, None] - 1 - rng.integers(back, size=(cuts, recent))
    return np.concatenate(
        [
            past[place],
            catalogue.draw_uniform(rng, (cuts, uniform)),
            catalogue.draw_popular(rng, (cuts, count - recent - uniform)),
        ],
        axis=1,
    )
