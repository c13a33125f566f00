"""Decisions of the relay: what a pass costs and may cost; time is an argument, nothing is run here."""
