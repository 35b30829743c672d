"""Benchmarks, whose results are differences and ratios measured within one run."""
