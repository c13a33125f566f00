"""Slates: whole lists from a pointwise ranker, by generation, evaluation and choice under rules."""
