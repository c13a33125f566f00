"""Retrieval: top-k equals a full sort, the user vector a plain mean, the filter drops rare items."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relaygr.bench.retrieval import RetrievalSpec, Retriever, item_vectors, top_k
from relaygr.core.errors import ConfigError
from relaygr.kernels.reference import ReferenceKernel
from relaygr.models.hstu import HstuConfig
from relaygr.models.ranker import Ranker
from relaygr.training.catalogue import Catalogue


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=60),
    st.integers(1, 70),
)
def test_top_k_is_a_stable_sort_cut_short(values: list[int], k: int) -> None:
    scores = np.array(values, np.float32)
    brute = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    assert top_k(scores, k).tolist() == brute


def test_top_k_of_nothing_wanted() -> None:
    with pytest.raises(ValueError, match="k: 0"):
        top_k(np.ones(3), 0)


def catalogue(counts: list[int]) -> Catalogue:
    each = np.array(counts, np.int64)
    return Catalogue(np.arange(10, 10 + len(each), dtype=np.int64), each, np.cumsum(each))


def test_retrieval_equals_brute_force() -> None:
    rng = np.random.default_rng(0)
    known = catalogue(rng.integers(1, 6, 200).tolist())
    vectors = rng.standard_normal((200, 8)).astype(np.float32)
    spec = RetrievalSpec(recent=4, half_life=2.0, wanted=10, again=2, overfetch=5, floor=3)
    retriever = Retriever(known, vectors, spec)
    history = np.array([12, 999, 50, 13, 14])  # 12 is too old, 999 unknown
    weights = np.array([2 ** (-2 / 2), 2 ** (-1 / 2), 1.0])
    mean = (weights[:, None] * vectors[[40, 3, 4]]).sum(0) / weights.sum()
    assert np.allclose(retriever.user_vector(history), mean, atol=1e-6)
    best = np.argsort(-(vectors @ mean), kind="stable")[:50]
    latest = [i for i in (14, 13, 50, 12) if known.counts_of(np.array([i]))[0] >= 3][:2]
    ranked = [int(known.items[i]) for i in best if known.counts[i] >= 3]
    assert retriever.retrieve(history).tolist() == list(dict.fromkeys(latest + ranked))[:10]


def test_a_user_without_known_items_gets_valid_candidates() -> None:
    retriever = Retriever(catalogue([5] * 30), np.eye(30, dtype=np.float32), RetrievalSpec(wanted=4))
    assert retriever.retrieve(np.array([1, 2])).tolist() == [10, 11, 12, 13]


def test_a_floor_above_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match="no item of the catalogue has 9 events"):
        Retriever(catalogue([1, 2]), np.eye(2, dtype=np.float32), RetrievalSpec(floor=9))


def test_item_vectors_are_centred_unit_tokens_of_the_model() -> None:
    torch.manual_seed(0)
    model = Ranker(HstuConfig(hidden_size=16, num_layers=1, num_heads=1, qk_dim=8, v_dim=8, item_rows=64))
    ids = np.arange(100, dtype=np.int64)
    kernel = ReferenceKernel()
    vectors = item_vectors(model, kernel, ids)
    with torch.no_grad():
        tokens = model.tokens.item(torch.from_numpy(ids), kernel).numpy()
    wanted = tokens - tokens.mean(axis=0)
    assert np.allclose(vectors, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-5)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
