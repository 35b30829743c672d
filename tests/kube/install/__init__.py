"""The chart, installed once for all tests here. The files run in the order of their names."""
