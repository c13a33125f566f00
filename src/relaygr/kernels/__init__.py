"""Attention and matrix kernels: plan once a batch, run once a layer."""
