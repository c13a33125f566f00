"""Retrieval from a vector index, and ranking with the history encoded meanwhile.

Trains a small ranker on made-up events for some seconds, puts the vectors of its items into a faiss index,
and serves recommendations of both. Needs `pip install relaygr[ann]`.

Run: python examples/ann_cascade.py
     python examples/ann_cascade.py --model FOLDER --events FOLDER    (of `relaygr train ranker`)
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import faiss
import numpy as np
from server import running_server

from relaygr.bench.retrieval import item_vectors
from relaygr.client import AsyncClient, Cascade, Recommendation
from relaygr.config.settings import TrainConfig
from relaygr.data.dataset import Events, Int64s, open_events
from relaygr.data.synth import SynthSpec, synthesize
from relaygr.data.write import write_events
from relaygr.kernels.select import choose
from relaygr.models.presets import preset
from relaygr.models.weights import load_ranker
from relaygr.training.ranker import RankerTrainer, ranker_config

RECENT = 20
FOUND = 256
USERS = 6
FEATURES_S = 0.08
DEADLINE_MS = 5000.0


class ItemIndex:
    """Items by the inner product of their vectors; searched list by list (IVF)."""

    def __init__(self, items: Int64s, vectors: np.ndarray) -> None:  # [items], float32 [items, D]
        self.items, self.vectors = items, vectors
        lists = max(1, len(items) // 64)
        size = vectors.shape[1]
        self.index = faiss.IndexIVFFlat(faiss.IndexFlatIP(size), size, lists, faiss.METRIC_INNER_PRODUCT)
        self.index.train(vectors)
        self.index.add(vectors)
        self.index.nprobe = min(lists, 16)

    def near(self, recent: Int64s) -> Int64s:
        """Items near the plain mean of the vectors of `recent`; retrieval has no model of its own."""
        query = self.vectors[np.searchsorted(self.items, recent)].mean(axis=0)
        _, places = self.index.search(query[None], FOUND)
        return self.items[places[0][places[0] >= 0]]


class Pipeline:
    """A retrieval and a pre-processing that know nothing of the relay."""

    def __init__(self, events: Events, index: ItemIndex, users: dict[str, int]) -> None:
        self.index = index
        self.recent = {name: events.history(place)[0][-RECENT:] for name, place in users.items()}

    def retrieve(self, user: str, request: None) -> Int64s:
        return self.index.near(self.recent[user])

    async def preprocess(self, user: str, request: None, found: Int64s) -> Int64s:
        """Drop what the user had just now; the wait stands for look-ups of features on other machines."""
        await asyncio.sleep(FEATURES_S)
        return found[~np.isin(found, self.recent[user])]


def show(answer: Recommendation) -> None:
    took = answer.timings
    path = "nothing to rank" if answer.ranking is None else f"path {answer.ranking.path}"
    print(
        f"{answer.user}: prefix {answer.signal.admission}, {path}, lead {took.lead_ms or 0:.1f} ms, "
        f"ranked {len(answer.candidates)} in {took.rank_ms or 0:.1f} ms, top items {answer.items}"
    )


async def recommend(url: str, events: Events, index: ItemIndex) -> None:
    longest = np.argsort(np.diff(events.offsets))[::-1][:USERS]
    users = {events.user(int(place)): int(place) for place in longest}
    pipeline = Pipeline(events, index, users)
    async with AsyncClient(url) as client:
        for name, place in users.items():
            await client.append(name, *(column[-2000:] for column in events.history(place)))
        # This is all that a pipeline has to do for the relay.
        cascade = Cascade(
            client, retrieve=pipeline.retrieve, preprocess=pipeline.preprocess, deadline_ms=DEADLINE_MS
        )
        for number, name in enumerate(users):
            cascade.enabled = number < USERS // 2  # the others for comparison
            show(await cascade.recommend(name, top_k=5))


@contextmanager
def trained() -> Iterator[tuple[Path, Path]]:
    """Folders of a model and of the events that it was trained on."""
    with tempfile.TemporaryDirectory() as folder:
        model, data = Path(folder, "model"), Path(folder, "events")
        table = synthesize(SynthSpec(users=500, mean_length=250, items=5000, clusters=25))
        events = write_events(data, table, name="made-up", source="relaygr.data.synth", licence="none")
        settings = TrainConfig(max_minutes=0.05, eval_requests=50)
        config = ranker_config(preset("hstu-tiny"), events, settings, settings.max_history)
        report = RankerTrainer(events, model, config, settings, choose("cpu", "fp32").kernel).run()
        print(f"trained {report.steps} steps in {report.elapsed_s:.0f} s")
        yield model, data


def main(model: Path, data: Path) -> None:
    events = open_events(data)
    items = np.unique(events.item_ids)
    index = ItemIndex(items, item_vectors(load_ranker(model), choose("cpu", "fp32").kernel, items))
    print(f"{len(items)} items in {index.index.nlist} lists of the index")
    # This model is fast enough to need no help; a server would refuse its signals.
    with running_server("--model", str(model), "--set", "trigger.admit_all=true") as url:
        asyncio.run(recommend(url, events, index))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--events", type=Path)
    given = parser.parse_args()
    if (given.model is None) != (given.events is None):
        parser.error("--model and --events go together")
    if given.model is not None:
        main(given.model, given.events)
    else:
        with trained() as folders:
            main(*folders)
