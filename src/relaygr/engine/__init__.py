"""Prefetch, append, rank and forget over one user state."""
