"""The generator keeps its promises: same seed same bytes, the asked shares, and something to learn."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.data.describe import describe
from relaygr.data.synth import SynthSpec, synthesize
from relaygr.data.write import write_events

SPEC = SynthSpec(users=300, mean_length=100, items=2000, clusters=20)


def generate(folder: Path, spec: SynthSpec) -> Events:
    return write_events(folder, synthesize(spec), name="synth", source="", licence="")


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path) -> None:
    for name, spec in (("a", SPEC), ("b", SPEC), ("c", msgspec.structs.replace(SPEC, seed=1))):
        generate(tmp_path / name, spec)
    for file in ("item_ids.npy", "timestamps.npy", "actions.npy", "offsets.npy"):
        data = [(tmp_path / name / file).read_bytes() for name in "abc"]
        assert data[0] == data[1] != data[2]


def test_sizes_times_and_ids_are_in_range(tmp_path: Path) -> None:
    events = generate(tmp_path / "d", SPEC)
    lengths = np.diff(events.offsets)
    assert events.n_users == 300
    assert lengths.min() >= 1
    assert 70 < lengths.mean() < 130
    assert lengths.max() > 4 * np.median(lengths)
    assert events.timestamps.min() >= SPEC.start_s
    assert events.timestamps.max() < SPEC.start_s + SPEC.days * 86_400
    assert events.item_ids.min() >= 1
    assert events.item_ids.max() <= SPEC.items
    assert events.meta.actions == ("engage", "like", "long_view")
    assert np.all(events.actions & 1)


def test_lengths_are_clipped(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(SPEC, min_length=50, max_length=120)
    lengths = np.diff(generate(tmp_path / "d", spec).offsets)
    assert (lengths.min(), lengths.max()) == (50, 120)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8])
def test_repeat_rate_adds_repeats_to_those_by_chance(tmp_path: Path, rate: float) -> None:
    by_chance = describe(generate(tmp_path / "a", msgspec.structs.replace(SPEC, repeat_rate=0.0))).repeats
    share = describe(generate(tmp_path / "b", msgspec.structs.replace(SPEC, repeat_rate=rate))).repeats
    assert rate - 0.03 <= share <= rate + by_chance + 0.03


def test_bursts_share_a_second(tmp_path: Path) -> None:
    calm = describe(generate(tmp_path / "a", msgspec.structs.replace(SPEC, burst_rate=0.0))).same_second
    bursts = describe(generate(tmp_path / "b", msgspec.structs.replace(SPEC, burst_rate=0.6))).same_second
    assert calm < 0.05
    assert 0.45 < bursts < 0.65


def test_popularity_is_skewed_and_drifts(tmp_path: Path) -> None:
    events = generate(tmp_path / "d", msgspec.structs.replace(SPEC, repeat_rate=0.0, drift=0.3))
    # The top 1 % would hold 1 % if items were alike.
    assert describe(events).top_items_share > 0.05
    middle = np.median(events.timestamps)
    early, late = (
        np.bincount(events.item_ids[part], minlength=SPEC.items + 1)
        for part in (events.timestamps < middle, events.timestamps >= middle)
    )
    assert len(set(np.argsort(-early)[:20]) & set(np.argsort(-late)[:20])) < 10


def test_a_users_past_predicts_the_future_better_than_popularity(tmp_path: Path) -> None:
    events = generate(tmp_path / "d", msgspec.structs.replace(SPEC, repeat_rate=0.0))
    past = np.zeros((events.n_users, SPEC.items + 1))
    future = np.zeros_like(past)
    for user in range(events.n_users):
        items = events.history(user)[0]
        np.add.at(past[user], items[: len(items) // 2], 1)
        np.add.at(future[user], items[len(items) // 2 :], 1)
    popularity = past.sum(axis=0)
    # The simplest model beyond popularity: items of users whose histories overlap with mine.
    neighbours = past @ past.T
    np.fill_diagonal(neighbours, 0)
    top_popular = np.argsort(-popularity)[:50]
    top_neighbour = np.argsort(-(neighbours @ past), axis=1)[:, :50]
    by_popularity = future[:, top_popular].sum() / future.sum()
    by_neighbours = np.take_along_axis(future, top_neighbour, axis=1).sum() / future.sum()
    assert by_neighbours > 1.2 * by_popularity > 0, (by_neighbours, by_popularity)


def test_likes_depend_on_taste(tmp_path: Path) -> None:
    rates = [
        np.mean(generate(tmp_path / str(taste), msgspec.structs.replace(SPEC, taste=taste)).actions & 2) / 2
        for taste in (0.0, 1.0)
    ]
    assert rates[0] + 0.05 < rates[1]


@pytest.mark.parametrize(
    "spec",
    [
        SynthSpec(users=1, mean_length=1, length_sigma=0, items=1, clusters=1),
        SynthSpec(users=3, mean_length=5, items=7, clusters=7, repeat_rate=1, burst_rate=1, taste=1, focus=1),
        SynthSpec(users=2, mean_length=3000, length_sigma=0, days=1, session_events=1, start_s=0, drift=1),
        SynthSpec(
            users=2, mean_length=9000, length_sigma=0, days=1, session_events=100_000, burst_rate=0, start_s=0
        ),
    ],
)
def test_extreme_specs(tmp_path: Path, spec: SynthSpec) -> None:
    assert generate(tmp_path / "d", spec).n_users == spec.users


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"users": 0}, "synth.users"),
        ({"repeat_rate": 1.1}, "synth.repeat_rate"),
        ({"taste": math.nan}, "synth.taste"),
        ({"min_length": 20, "max_length": 10}, "synth.min_length"),
        ({"items": 10, "clusters": 11}, "synth.clusters"),
        ({"users": 1_000_000, "mean_length": 1000}, "synth.mean_length"),
    ],
)
def test_bad_specs(values: dict[str, float], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SynthSpec(**values)  # type: ignore[arg-type]
    assert caught.value.path == path
