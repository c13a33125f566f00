"""The dense, obvious kernel: runs in float64 and under autograd."""

from relaygr.kernels.reference.dense import ReferenceKernel

__all__ = ["ReferenceKernel"]
