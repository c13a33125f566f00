"""The dense, obvious kernel: runs in float64 and under autograd."""
