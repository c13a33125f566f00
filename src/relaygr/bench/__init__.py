"""Benchmarks, verification, the demo and the doctor: they drive the public door."""
