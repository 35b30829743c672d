"""A card's worker: the process that runs a program's operations on one card."""
