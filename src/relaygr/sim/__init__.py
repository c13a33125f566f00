"""A fleet in virtual time: the decisions of `relay` and `cache` as they are, costs from a table."""
