"""Readers of everybody's events: the contract is in `interface.py`, the list of formats in `registry.py`."""
