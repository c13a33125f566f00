"""The dense, obvious kernels: they run in float64 and under autograd."""

from relaygr.kernels.reference.beams import ReferenceBeams
from relaygr.kernels.reference.dense import ReferenceKernel

__all__ = ["ReferenceBeams", "ReferenceKernel"]
