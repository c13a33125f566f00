"""Small data sets for training tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import MakeEvents

from relaygr.data.dataset import Events
from relaygr.data.synth import SynthSpec, synthesize
from relaygr.data.write import EventTable, write_events


@pytest.fixture(scope="session")
def synth_events(tmp_path_factory: pytest.TempPathFactory) -> Events:
    """60 users with about 40 events, three action bits, many ties and repeats."""
    spec = SynthSpec(users=60, mean_length=40, max_length=150, items=300, clusters=6, burst_rate=0.4, seed=3)
    folder = tmp_path_factory.mktemp("synth") / "events"
    return write_events(folder, synthesize(spec), name="synth", source="test", licence="CC0-1.0")


@pytest.fixture(scope="session")
def cyclic(tmp_path_factory: pytest.TempPathFactory) -> Events:
    """Twelve users who go round in one of three circles of five items, one item a second."""
    users = np.repeat(np.arange(12), 60)
    step = np.tile(np.arange(60), 12)
    items = 10 * (users % 3) + (step + users) % 5
    table = EventTable([f"u{i}" for i in range(12)], users, items, 1000 + 7 * step, np.ones_like(step))
    folder = tmp_path_factory.mktemp("cyclic") / "events"
    return write_events(folder, table, name="cyclic", source="test", licence="CC0-1.0")


@pytest.fixture
def make_events(tmp_path: Path) -> MakeEvents:
    """A data set from (user, item, second) triples."""

    def make(rows: Sequence[tuple[int, int, int]]) -> Events:
        user, item, time = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
        users = [f"u{index}" for index in range(int(user.max()) + 1)]
        table = EventTable(users, user, item, time, np.ones(len(user), dtype=np.int64))
        return write_events(tmp_path / "made", table, name="made", source="test", licence="CC0-1.0")

    return make
