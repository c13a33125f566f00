"""Slates of an engine: its scores of one ranking, turned into a list by the list layer."""
