"""A machine that nobody measures."""

from __future__ import annotations

from relaygr.bench.machine import Machine, MatrixGflops, MatrixGflopsByRoute, RouteGflops

MACHINE = Machine(
    cpu="some",
    features=(),
    cores=1,
    threads=1,
    memory_bytes=None,
    matrix_gflops=MatrixGflops(),
    matrix_gflops_by_route=MatrixGflopsByRoute(),
    copy_gb_s=1.0,
    torch="2",
    python="3",
    system="some",
)


class NoProbe:
    """Takes no time."""

    def __init__(self, dtype: str) -> None:
        assert dtype == "fp32"

    def measure(self, repeats: int) -> None:
        assert repeats > 0

    def rates(self) -> RouteGflops:
        return RouteGflops(1.0)
