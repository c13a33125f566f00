"""What a generator is compared with, on lists that can be read off."""

from __future__ import annotations

import numpy as np
from tiny_runs import TINY_MODEL, MakeEvents

from relaygr.data.dataset import Events
from relaygr.data.split import evaluation_requests, temporal_split
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.ranker import Ranker
from relaygr.training.catalogue import catalogue_before
from relaygr.training.scoring import RankerScorer, UserEvents
from relaygr.training.sid_rivals import popular, ranked, recent

NOTHING = np.zeros(0, dtype=np.int64)


def test_popularity_and_recency(make_events: MakeEvents) -> None:
    events = make_events([(0, 5, 1), (0, 3, 2), (0, 5, 3), (1, 8, 4), (1, 3, 5), (1, 5, 6), (1, 9, 7)])
    catalogue = catalogue_before(events, 7)
    assert popular(catalogue, NOTHING, 10).tolist() == [5, 3, 8]
    assert popular(catalogue, np.array([5, 77]), 1).tolist() == [3]
    history = np.array([3, 8, 9, 3])
    assert recent(catalogue, history, NOTHING, 10).tolist() == [3, 8, 5]
    assert recent(catalogue, history, np.array([3]), 10).tolist() == [8, 5]
    assert recent(catalogue, history, NOTHING, 1).tolist() == [3]
    assert recent(catalogue, NOTHING, NOTHING, 2).tolist() == [5, 3]


def test_a_ranker_names_its_best_items(synth_events: Events) -> None:
    split = temporal_split(synth_events)
    catalogue = catalogue_before(synth_events, split.train_end_s)
    request = evaluation_requests(synth_events, split.valid_end_s, 1 << 62)[0]
    user = UserEvents.of(synth_events.history(request.user))
    scorer = RankerScorer(Ranker(TINY_MODEL).eval(), ReferenceKernel())
    (scores,) = scorer.score(user, [request], [catalogue.items])
    (top,) = ranked(scorer, catalogue, user, [request], [NOTHING], 7)
    assert top.tolist() == catalogue.items[np.argsort(-scores, kind="stable")[:7]].tolist()
    (rest,) = ranked(scorer, catalogue, user, [request], [top[:2]], 5)
    assert rest.tolist() == top[2:].tolist()
    (few,) = ranked(scorer, catalogue, user, [request], [catalogue.items[3:]], 7)
    assert sorted(few.tolist()) == catalogue.items[:3].tolist()
