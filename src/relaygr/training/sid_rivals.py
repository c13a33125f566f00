"""What a generator is compared with: popularity, the user's newest items, and a ranker over all items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relaygr.data.dataset import Int64s
from relaygr.data.split import EvalRequest
from relaygr.training.catalogue import Catalogue
from relaygr.training.metrics import top_order
from relaygr.training.scoring import RankerScorer, UserEvents


def popular(catalogue: Catalogue, hidden: Int64s, most: int) -> Int64s:
    """The `most` most frequent items, of equally frequent ones the lower; none of `hidden`."""
    order = np.argsort(-catalogue.counts, kind="stable")[: most + len(hidden)]
    items = catalogue.items[order]
    return items[~np.isin(items, hidden)][:most]


def recent(catalogue: Catalogue, history: Int64s, hidden: Int64s, most: int) -> Int64s:
    """Distinct items of `history` that the catalogue knows, newest first, filled up by popularity."""
    newest = history[catalogue.knows(history)][::-1]
    _, first = np.unique(newest, return_index=True)
    own = newest[np.sort(first)]
    own = own[~np.isin(own, hidden)][:most]
    return np.concatenate([own, popular(catalogue, np.concatenate([hidden, own]), most - len(own))])


def ranked(
    scorer: RankerScorer,
    catalogue: Catalogue,
    user: UserEvents,
    requests: Sequence[EvalRequest],
    hidden: Sequence[Int64s],
    most: int,
) -> list[Int64s]:
    """The `most` best items of the whole catalogue by a ranker's scores, for requests of one user."""
    lists = []
    for request, without in zip(requests, hidden, strict=True):
        (scores,) = scorer.score(user, [request], [catalogue.items])
        scores[np.isin(catalogue.items, without)] = -np.inf
        best = top_order(scores, most)
        lists.append(catalogue.items[best[np.isfinite(scores[best])]])
    return lists
