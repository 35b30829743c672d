"""Benchmarks: measurements of one run, as differences and ratios."""
