"""Digests, the index of user states, tier books, leases and replacement: decisions without tensors."""
