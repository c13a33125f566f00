"""Training negatives: 45 % by popularity, 30 % uniform, 25 % from the user's own recent past.

The recent ones teach order within the past. They make every past item look common, so a loss over them has
to correct for how often each item is drawn.
"""

from __future__ import annotations

import numpy as np

from relaygr.data.dataset import Int64s
from relaygr.training.catalogue import Catalogue
from relaygr.training.metrics import Floats

RECENT_EVENTS = 200
RECENT_SHARE = 0.25
UNIFORM_SHARE = 0.3


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


def log_expected(catalogue: Catalogue, past: Int64s, visible: int, ids: Int64s, count: int) -> Floats:
    """Log of how often `draw_negatives` draws each of `ids` for one cut, in expectation; [len(ids)].

    An item that it never draws (a positive outside the catalogue) counts as if it had one training event.
    """
    recent, uniform = round(count * RECENT_SHARE), round(count * UNIFORM_SHARE)
    window = np.sort(past[max(visible - RECENT_EVENTS, 0) : visible])
    seen = np.searchsorted(window, ids, side="right") - np.searchsorted(window, ids, side="left")
    popularity = np.maximum(catalogue.counts_of(ids), 1) / catalogue.running[-1]
    expected = (
        recent * seen / len(window) + uniform / len(catalogue) + (count - recent - uniform) * popularity
    )
    logs: Floats = np.log(expected)
    return logs
