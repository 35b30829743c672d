"""Adapters of frameworks other than PyTorch: programs of theirs compute on the virtual card."""
