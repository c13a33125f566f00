"""Slates over HTTP: bodies and answers, the desk behind the routes, metrics."""
