"""Random requests under random rules, as `bench slate` draws them."""

from relaygr.bench.slate_cases import ATTRIBUTES, KINDS, Case, case, items, one_rule

__all__ = ["ATTRIBUTES", "KINDS", "Case", "case", "items", "one_rule"]
