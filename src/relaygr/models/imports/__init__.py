"""Checkpoints of published HSTU implementations, read, checked and turned into models of this project."""
