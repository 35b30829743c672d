"""Start of the device: cards, kernels and torch's own settings, at the program's first use."""
