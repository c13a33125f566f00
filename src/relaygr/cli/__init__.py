"""The commands: parse, call, print."""

import os

# Read by the OpenMP library when torch loads it, hence here, before any command does. Idle workers spin for
# microseconds instead of milliseconds: alone that costs a few percent, beside a busy process it takes a
# hit's P99 from 170 to 18 ms (docs/experiments.md).
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
