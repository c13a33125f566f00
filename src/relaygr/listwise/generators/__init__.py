"""Ways to propose lists; each is a `Generator` of `listwise/proposal.py`."""
