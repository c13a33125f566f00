"""Cuts never see their own second or anything later."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_runs import TINY_MODEL, MakeEvents

from relaygr.core.errors import ConfigError
from relaygr.data.dataset import Events
from relaygr.data.split import temporal_split
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.ranker import Ranker
from relaygr.training.batch import Batch, BatchSource, BatchSpec
from relaygr.training.catalogue import catalogue_before
from relaygr.training.cuts import draw_window, training_groups

SPEC = BatchSpec(windows=6, rows=100_000, shortest=2, longest=40, cuts=5, negatives=7)


def source(events: Events, seed: int = 0) -> BatchSource:
    end = temporal_split(events).train_end_s
    return BatchSource(events, training_groups(events, end), catalogue_before(events, end), SPEC, seed)


def test_groups_are_the_seconds_with_a_past(make_events: MakeEvents) -> None:
    events = make_events([(0, 1, 10), (0, 2, 20), (0, 3, 20), (0, 4, 30), (1, 5, 30), (1, 6, 40), (2, 7, 40)])
    groups = training_groups(events, 35)
    assert groups.start.tolist() == [1, 3]
    assert groups.stop.tolist() == [3, 4]
    assert groups.user_start.tolist() == [0, 0]


def test_no_second_with_a_past_is_an_error(make_events: MakeEvents) -> None:
    events = make_events([(0, 1, 10), (0, 2, 10), (1, 3, 20), (1, 3, 90)])
    with pytest.raises(ConfigError, match="two different seconds before 50 s"):
        training_groups(events, 50)


def test_windows_stay_with_one_user_and_before_the_split(synth_events: Events) -> None:
    end = temporal_split(synth_events).train_end_s
    groups = training_groups(synth_events, end)
    rng = np.random.default_rng(0)
    for _ in range(300):
        window = draw_window(groups, rng, 2, 40, 5)
        assert 1 <= window.stop - window.start <= 40
        assert 1 <= len(window.cuts) <= 5
        assert len(set(window.cuts.tolist())) == len(window.cuts)
        assert groups.start[window.cuts[-1]] == window.stop
        assert (groups.start[window.cuts] > window.start).all()
        assert set(groups.user_start[window.cuts]) == {groups.user_start[window.cuts[-1]]}
        assert groups.user_start[window.cuts[-1]] <= window.start
        assert synth_events.timestamps[window.start : window.stop].max() < end


def test_later_groups_are_drawn_more_often(synth_events: Events) -> None:
    end = temporal_split(synth_events).train_end_s
    even, late = training_groups(synth_events, end), training_groups(synth_events, end, half_life=0.1)
    rng = np.random.default_rng(0)
    times = synth_events.timestamps[even.start]
    span = end - times.min()
    recent = {
        name: np.mean([times[groups.draw(rng)] > end - 0.1 * span for _ in range(2000)])
        for name, groups in (("even", even), ("late", late))
    }
    share = np.mean(times > end - 0.1 * span)
    assert abs(recent["even"] - share) < 0.05
    assert recent["late"] > recent["even"] + 0.2
    assert late.cumulative[-1] == pytest.approx(1)


def test_visible_events_are_strictly_earlier_and_all_of_them(synth_events: Events) -> None:
    batches = source(synth_events)
    ties = 0
    for step in range(20):
        for row in batches.batch(step).rows:
            assert row.candidate_high is not None
            assert isinstance(row.query_time, torch.Tensor)
            earlier = row.timestamps[None] < row.query_time[:, None]
            seen = torch.arange(len(row.items))[None] < row.candidate_high[:, None]
            assert torch.equal(seen, earlier)
            assert bool((row.candidate_high >= 1).all())
            ties += int((row.timestamps[None] == row.query_time[:, None]).sum())
    assert ties > 0, "the data must have events in the second of a cut for this test to mean anything"


def test_masks_of_the_kernel_hide_the_second_of_the_cut(synth_events: Events) -> None:
    model, kernel = Ranker(TINY_MODEL), ReferenceKernel()
    batch = source(synth_events).batch(0)
    plan = kernel.plan(model.spec, [model.segment(row) for row in batch.rows], torch.float32)
    for row, mask in zip(batch.rows, plan.candidate_masks, strict=True):
        assert isinstance(row.query_time, torch.Tensor)
        assert torch.equal(mask.bool(), row.timestamps[None] < row.query_time[:, None])


def test_later_events_do_not_change_a_score(synth_events: Events) -> None:
    torch.manual_seed(0)
    model, kernel = Ranker(TINY_MODEL).double(), ReferenceKernel()
    row = max(source(synth_events).batch(1).rows, key=lambda one: len(one.items))
    assert row.candidate_high is not None
    assert isinstance(row.query_time, torch.Tensor)
    high = int(row.candidate_high[0])
    changed = row.items.clone()
    changed[high:] += 1
    with torch.no_grad():
        before = model([row], kernel)[0]
        after = model([type(row)(row.contextual, changed, row.timestamps, row.actions, row.candidates,
                                 row.query_time, candidate_high=row.candidate_high)], kernel)[0]  # fmt: skip
    first = row.candidate_high == high
    assert torch.equal(before[first], after[first])
    assert high < len(row.items)
    assert not torch.equal(before[~first], after[~first])


def positives_of(events: Events, batch: Batch) -> list[set[int]]:
    found = []
    for row in batch.rows:
        assert isinstance(row.query_time, torch.Tensor)
        for time in row.query_time.unique_consecutive().tolist():
            owner = next(
                u
                for u in range(events.n_users)
                if set(row.items.tolist()) <= set(events.history(u)[0].tolist())
                and set(row.timestamps.tolist()) <= set(events.history(u)[1].tolist())
            )
            items, times, _ = events.history(owner)
            found.append(set(items[times == time].tolist()))
    return found


def test_positives_are_of_the_second_and_usable_negatives_are_not(synth_events: Events) -> None:
    batch = source(synth_events).batch(2)
    ids = torch.cat([row.candidates for row in batch.rows])
    wanted = positives_of(synth_events, batch)
    assert len(wanted) == len(batch.negative)
    for place, cut in zip(batch.positive.tolist(), batch.cut.tolist(), strict=True):
        assert int(ids[place]) in wanted[cut]
    for cut, places in enumerate(batch.negative):
        negatives = ids[places].tolist()
        assert [item not in wanted[cut] for item in negatives] == batch.usable[cut].tolist()
    everything = torch.cat([batch.positive, batch.negative.flatten()]).sort().values
    assert torch.equal(everything, torch.arange(len(ids)))
    assert torch.allclose(torch.zeros(len(wanted)).index_add(0, batch.cut, batch.weight), torch.ones(1))


def test_batches_depend_on_seed_and_step_only(synth_events: Events) -> None:
    first, again = source(synth_events), source(synth_events)
    first.batch(0)
    assert torch.equal(first.batch(5).rows[0].candidates, again.batch(5).rows[0].candidates)
    other = source(synth_events, seed=1).batch(5)
    assert not torch.equal(again.batch(5).rows[0].items, other.rows[0].items)
