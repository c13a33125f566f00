"""Training chooses weights by the rule of candidates that evaluation follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import TINY_MODEL, MakeEvents, tiny_train

from relaygr.data.dataset import Events
from relaygr.data.split import evaluation_requests, temporal_split
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.weights import load_ranker
from relaygr.training.candidates import CandidateSource
from relaygr.training.catalogue import catalogue_before
from relaygr.training.evaluate import replay
from relaygr.training.initial import ranker_config
from relaygr.training.ranker import VALID_NEGATIVES, RankerTrainer
from relaygr.training.scoring import RankerScorer


def ndcg(events: Events, folder: Path, seen: str) -> float:
    split = temporal_split(events)
    catalogue = catalogue_before(events, split.train_end_s)
    source = CandidateSource("sampled", catalogue, VALID_NEGATIVES, 0, seen)
    requests = evaluation_requests(events, split.train_end_s, split.valid_end_s, max_requests=20)
    scorer = RankerScorer(load_ranker(folder), ReferenceKernel())
    return replay(events, requests, source, scorer).mean("model", "ndcg@10")


def test_validation_drops_seen_items_where_none_repeats(
    synth_events: Events, make_events: MakeEvents, tmp_path: Path
) -> None:
    once = make_events([(user, 7 * user + item, 10 * item + user) for user in range(9) for item in range(30)])
    for events, seen, other in ((once, "drop", "keep"), (synth_events, "keep", "drop")):
        folder = tmp_path / seen
        train = tiny_train(max_steps=2, eval_every_steps=2)
        config = ranker_config(TINY_MODEL, events, train)
        report = RankerTrainer(events, folder, config, train, ReferenceKernel()).run()
        assert report.best is not None
        assert report.best.ndcg == pytest.approx(ndcg(events, folder, seen))
        assert report.best.ndcg != pytest.approx(ndcg(events, folder, other), abs=1e-4)
