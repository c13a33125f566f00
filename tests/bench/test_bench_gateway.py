"""`bench gateway`: a short run on real processes gives numbers that can be."""

from __future__ import annotations

import pytest

from relaygr.bench.gateway import GatewaySpec, bench_gateway
from relaygr.core.errors import ConfigError


def test_a_short_run() -> None:
    told: list[str] = []
    report = bench_gateway(GatewaySpec(requests=30, candidates=8), told.append)
    assert 0 < report.direct.median_ms <= report.direct.p99_ms
    assert 0 < report.gateway.median_ms <= report.gateway.p99_ms
    assert [(one.hash, one.members) for one in report.decisions] == [
        (kind, members) for kind in ("blake2b", "mix64") for members in (4, 64, 1000)
    ]
    assert all(one.new_us > 0 and one.placed_us > 0 for one in report.decisions)
    assert told


@pytest.mark.parametrize("spec", [{"requests": 0}, {"candidates": 20_000}])
def test_limits(spec: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="is outside"):
        GatewaySpec(**spec)
