"""The dense, obvious kernels: they run in float64 and under autograd."""

from relaygr.kernels.reference.beams import ReferenceBeams
from relaygr.kernels.reference.convolution import reference_beams, reference_prompt
from relaygr.kernels.reference.dense import ReferenceKernel
from relaygr.kernels.reference.recurrent import ReferenceRecurrent

__all__ = ["ReferenceBeams", "ReferenceKernel", "ReferenceRecurrent", "reference_beams", "reference_prompt"]
