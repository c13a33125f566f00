"""Offline evaluation of slates: what logs can say about lists that were not shown, and what they cannot."""
