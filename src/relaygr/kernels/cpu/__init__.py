"""The CPU kernels: they never build an n x n matrix and skip what the mask hides."""

from relaygr.kernels.cpu.beams import CpuBeams
from relaygr.kernels.cpu.blocked import BlockedKernel
from relaygr.kernels.cpu.parts import FlashRoute, PartRoute, TiledRoute
from relaygr.kernels.cpu.recurrent import CpuRecurrent
from relaygr.kernels.cpu.routes import AtenRoute, MatrixRoute, OneDnnRoute

__all__ = [
    "AtenRoute",
    "BlockedKernel",
    "CpuBeams",
    "CpuRecurrent",
    "FlashRoute",
    "MatrixRoute",
    "OneDnnRoute",
    "PartRoute",
    "TiledRoute",
]
