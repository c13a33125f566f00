"""Ids, frozen value types, the error tree, units and the clock protocol; no third-party imports."""
