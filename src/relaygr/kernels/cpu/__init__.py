"""The blocked CPU kernel: never builds an n x n matrix and skips what the mask hides."""

from relaygr.kernels.cpu.blocked import BlockedKernel
from relaygr.kernels.cpu.routes import AtenRoute, MatrixRoute, OneDnnRoute

__all__ = ["AtenRoute", "BlockedKernel", "MatrixRoute", "OneDnnRoute"]
