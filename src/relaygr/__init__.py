"""relaygr: serve long user histories to generative recommendation rankers inside a latency budget."""

__version__ = "0.1.0"
