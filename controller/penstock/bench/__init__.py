"""Benchmarks: figures as measured, in one run, as differences and ratios."""
