"""The catalogue: which semantic ids exist, which items they name, and in which version of the truth."""
