"""Sampling, loss, starting weights and the item table's optimiser, each against a plain formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tiny_runs import TINY_MODEL, MakeEvents, tiny_train

from relaygr.data.dataset import Events
from relaygr.data.split import temporal_split
from relaygr.models.layers.hstu import HstuLayer
from relaygr.models.presets import PRESETS
from relaygr.models.ranker import Ranker
from relaygr.training.batch import BatchSource, BatchSpec
from relaygr.training.catalogue import catalogue_before
from relaygr.training.cuts import training_groups
from relaygr.training.initial import ranker_config, start_from_matching
from relaygr.training.loss import BITS_WEIGHT, ranking_loss
from relaygr.training.negatives import draw_negatives, log_expected
from relaygr.training.optimizer import Optimizers, RowwiseAdagrad, lr_share


def test_expected_draws_are_the_mean_of_draws(make_events: MakeEvents) -> None:
    events = make_events([(0, item, 10 * place) for place, item in enumerate([1, 2, 2, 3, 3, 3, 4, 9])])
    catalogue = catalogue_before(events, 70)
    past = np.array([1, 2, 2, 1, 4])
    draws = draw_negatives(catalogue, np.random.default_rng(0), past, np.full(20_000, 3), 20)
    assert draws.shape == (20_000, 20)
    ids = np.array([1, 2, 3, 4])
    mean = np.array([(draws == item).sum() / 20_000 for item in ids])
    assert np.exp(log_expected(catalogue, past, 3, ids, 20)) == pytest.approx(mean, rel=0.03)
    assert np.isfinite(log_expected(catalogue, past, 3, np.array([9]), 20)).all()


def test_loss_is_the_plain_formula(synth_events: Events) -> None:
    end = temporal_split(synth_events).train_end_s
    spec = BatchSpec(windows=3, rows=10_000, shortest=4, longest=20, cuts=3, negatives=5)
    catalogue = catalogue_before(synth_events, end)
    batch = BatchSource(synth_events, training_groups(synth_events, end), catalogue, spec, 0).batch(0)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(batch.log_expected), 3, generator=generator, dtype=torch.float64)
    corrected = logits - batch.log_expected.double()[:, None]
    cuts, contrast, bits = len(batch.negative), 0.0, 0.0
    for cut in range(cuts):
        others = batch.negative[cut][batch.usable[cut]]
        mine = batch.positive[batch.cut == cut]
        for place, actions in zip(mine, batch.actions[batch.cut == cut], strict=True):
            group = torch.cat([place[None], others])
            contrast -= float(corrected[group, 0].log_softmax(0)[0]) / len(mine)
            for task in range(3):
                sign = 1 if (int(actions) >> task) & 1 else -1
                bits -= math.log(1 / (1 + math.exp(-sign * float(corrected[place, task])))) / len(mine)
        bits -= float(torch.sigmoid(-corrected[others]).log().sum())
    wanted = contrast / cuts + BITS_WEIGHT * bits / (3 * cuts)
    assert float(ranking_loss(logits, batch)) == pytest.approx(wanted, rel=1e-5)


def test_start_has_keys_equal_to_queries_and_a_bias_that_falls(synth_events: Events) -> None:
    config = ranker_config(TINY_MODEL, synth_events, tiny_train())
    assert config.score_time_bias
    model = Ranker(config)
    start_from_matching(model, 100)
    layer = model.layers[0]
    assert isinstance(layer, HstuLayer)
    queries, keys = layer.uvqk.weight[2 * layer.value_size :].chunk(2)
    assert torch.equal(queries, keys)
    assert layer.time_bias is not None
    assert bool((layer.time_bias[:-1].diff(dim=0) < 0).all())
    assert model.head.predict.second.bias is not None
    assert model.head.predict.second.bias.tolist() == pytest.approx([-math.log(100)] * 3)


def test_configuration_follows_the_data(synth_events: Events) -> None:
    config = ranker_config(PRESETS["hstu-tiny"], synth_events, tiny_train(score_time_bias=False), 48)
    assert (config.max_seq_len, config.position_buckets) == (48, 32)
    assert config.tasks == config.action_bits == ("engage", "like", "long_view")
    assert (config.score_time_bias, config.scaling_seqlen) == (False, 8)


def test_rowwise_adagrad() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    before = table.weight.detach().clone()
    optimizer = RowwiseAdagrad([table.weight], lr=0.5)
    table(torch.tensor([1, 1, 3])).mul(torch.tensor([3.0, 4.0])).sum().backward()
    optimizer.step()
    change = table.weight.detach() - before
    assert torch.equal(change[[0, 2]], torch.zeros(2, 2))
    # One mean square per row: row 1 got twice the gradient of row 3, so the first steps are equal.
    scale = 0.5 / math.sqrt((9 + 16) / 2)
    assert torch.allclose(change[[1, 3]], -scale * torch.tensor([[3.0, 4.0], [3.0, 4.0]]))


def test_table_rows_without_events_never_move(synth_events: Events) -> None:
    model = Ranker(TINY_MODEL)
    optimizers = Optimizers(model, lr=0.1, table_lr=0.1, weight_decay=0.5)
    before = model.tokens.item.table.weight.detach().clone()
    model.tokens.item.lookup(torch.tensor([7])).sum().backward()
    norm = optimizers.step(1.0, clip_norm=1.0)
    moved = (model.tokens.item.table.weight.detach() != before).any(dim=1)
    assert norm == 0.0
    assert 1 <= int(moved.sum()) <= 2
    assert model.tokens.item.table.weight.grad is None


def test_learning_rate() -> None:
    assert lr_share(0, 10, 0.0) == pytest.approx(0.1)
    assert lr_share(9, 10, 0.0) == pytest.approx(1.0)
    assert lr_share(100, 10, 0.5) == pytest.approx(0.5)
    assert lr_share(100, 10, 1.5) == pytest.approx(0.0)
    assert lr_share(0, 0, 0.0) == 1.0
