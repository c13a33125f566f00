"""The blocked CPU kernel: never builds an n x n matrix and skips what the mask hides."""
