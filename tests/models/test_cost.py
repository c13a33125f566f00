"""Cost arithmetic against numbers worked out by hand."""

from __future__ import annotations

import pytest

from relaygr.core.units import GIB, KIB, MIB
from relaygr.models.cost import Cost, cost, layer_cost
from relaygr.models.presets import preset

DLRM_V3 = layer_cost(512, 5, 4, 128, 128, element_bytes=2, output_parts=3)
KUAIRAND = layer_cost(512, 3, 4, 128, 128, element_bytes=2, output_parts=1)
BLOCK = layer_cost(1024, 8, 4, 256, 256, element_bytes=2, output_parts=1)


@pytest.mark.parametrize(
    ("price", "layers", "mflop_per_layer", "overtakes", "kv_token", "row_tokens", "kv_row"),
    [
        pytest.param(DLRM_V3, 5, 3.67, 1792, 10 * KIB, 2048, 20 * MIB, id="dlrm-v3"),
        pytest.param(KUAIRAND, 3, 2.62, 1280, 6 * KIB, 8192, 48 * MIB, id="kuairand"),
        pytest.param(BLOCK, 8, 10.5, 2560, 32 * KIB, 4096, 128 * MIB, id="block"),
    ],
)
def test_the_table(
    price: Cost,
    layers: int,
    mflop_per_layer: float,
    overtakes: int,
    kv_token: int,
    row_tokens: int,
    kv_row: int,
) -> None:
    assert price.dense_flops_per_token / layers == pytest.approx(mflop_per_layer * 1e6, rel=2e-3)
    assert price.overtakes_at == overtakes
    assert price.kv_bytes_per_token == kv_token
    assert price.kv_bytes_per_token * row_tokens == kv_row


def test_formulas_by_hand() -> None:
    """D 8, H 2, A 3, E 5, Y 7: nothing coincides."""
    price = layer_cost(8, 7, 2, 3, 5, element_bytes=4, output_parts=3)
    assert price.dense_flops_per_token == 7 * (4 * 8 * 2 * (5 + 3) + 2 * 2 * 5 * 8 * 3)
    assert price.attention_flops_per_pair == 7 * 2 * 2 * (3 + 5)
    assert price.kv_bytes_per_token == 7 * 2 * (3 + 5) * 4
    six_layers = 6 * (100 * (4 * 8 * 2 * 8 + 2 * 2 * 5 * 8 * 3) + 5050 * 2 * 2 * 8)
    assert price.prefetch_flops(100) == six_layers + 100 * 2 * 8 * 2 * 8


def test_the_two_regimes() -> None:
    prefill = DLRM_V3.prefill_flops(1024)
    many, few = DLRM_V3.score_flops(2048, 1024), DLRM_V3.score_flops(100, 1024)
    assert prefill == pytest.approx(24e9, rel=0.01)
    assert many == pytest.approx(59e9, rel=0.01)
    assert few == pytest.approx(2.9e9, rel=0.01)
    assert prefill / (prefill + many) == pytest.approx(0.3, abs=0.015)
    assert prefill / (prefill + few) == pytest.approx(0.9, abs=0.015)


def test_cache_sizes() -> None:
    assert (KUAIRAND.kv_bytes_per_token, KUAIRAND.kv_bytes_per_token * 8192) == (6 * KIB, 48 * MIB)
    assert (BLOCK.kv_bytes_per_token, BLOCK.kv_bytes_per_token * 4096) == (32 * KIB, 128 * MIB)
    assert (DLRM_V3.kv_bytes_per_token, DLRM_V3.kv_bytes_per_token * 2048) == (10 * KIB, 20 * MIB)
    pool = 102_400 * 32 * KUAIRAND.kv_bytes_per_token
    assert pool == 18.75 * GIB
    assert pool / (KUAIRAND.kv_bytes_per_token * 8192) == 400
    tib = 1024 * GIB
    assert 1e6 * 48 * MIB / tib == pytest.approx(45.8, abs=0.05)
    assert 1e6 * 128 * MIB / tib == pytest.approx(122, abs=0.5)


@pytest.mark.parametrize("cut", [0, 1, 500, 1023])
def test_appending_costs_what_encoding_at_once_costs(cut: int) -> None:
    whole = DLRM_V3.prefill_flops(1024)
    assert DLRM_V3.prefill_flops(cut) + DLRM_V3.prefill_flops(1024 - cut, cached=cut) == whole


def test_a_candidate_sees_the_history_and_itself() -> None:
    assert DLRM_V3.score_flops(1, 0) == DLRM_V3.prefill_flops(1)
    assert DLRM_V3.score_flops(1, 77) == DLRM_V3.prefill_flops(1, cached=77)
    assert DLRM_V3.score_flops(9, 77) == 9 * DLRM_V3.score_flops(1, 77)


def test_presets() -> None:
    """The ranker's output has three parts, so the KuaiRand shape costs more than its `gate` original."""
    assert cost(preset("hstu-mlperf"), 2) == DLRM_V3
    kuairand = cost(preset("hstu-kuairand"), 2)
    assert kuairand == layer_cost(512, 3, 4, 128, 128, 2, output_parts=3)
    assert kuairand.kv_bytes_per_token == KUAIRAND.kv_bytes_per_token
    assert (
        cost(preset("hstu-small"), 4).kv_bytes_per_token
        == 2 * cost(preset("hstu-small"), 2).kv_bytes_per_token
    )
