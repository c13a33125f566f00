"""The parts of the demonstration's report that say where and on what it ran."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import numpy as np
import torch

from relaygr.bench.cascade import Lap, Visit
from relaygr.bench.demo_result import CascadeNote, DataNote, MachineNote
from relaygr.bench.demo_stats import percentile, recall
from relaygr.bench.machine import cpu_model, memory_bytes, usable_cores
from relaygr.bench.retrieval import Retriever
from relaygr.data.dataset import Events


def machine_note(threads: int, threads_ms: dict[str, float]) -> MachineNote:
    return MachineNote(
        cpu=cpu_model(),
        cores=usable_cores(),
        memory_bytes=memory_bytes()[0],
        threads=threads,
        threads_ms=threads_ms,
        torch=str(torch.__version__),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


def data_note(events: Events, train_end_s: int, test_from_s: int) -> DataNote:
    lengths = np.diff(events.offsets)
    return DataNote(
        path=str(events.path),
        name=events.meta.name,
        source=events.meta.source,
        users=events.n_users,
        events=events.n_events,
        items=events.meta.statistics.items,
        median_length=float(np.median(lengths)),
        max_length=int(lengths.max()),
        train_end_s=train_end_s,
        test_from_s=test_from_s,
    )


def cascade_note(
    lead_ms: float, retriever: Retriever, visits: Sequence[Visit], laps: Sequence[Lap]
) -> CascadeNote:
    found = retriever.spec
    return CascadeNote(
        lead_ms=lead_ms,
        retrieval_ms_p50=percentile(np.array([lap.retrieval_ms for lap in laps]), 50),
        catalogue_items=len(retriever.catalogue),
        vector_size=retriever.vectors.shape[1],
        wanted=found.wanted,
        again=found.again,
        overfetch=found.overfetch,
        floor=found.floor,
        candidates_p50=float(np.median([len(lap.candidates) for lap in laps])),
        recall=recall(visits, retriever),
    )
