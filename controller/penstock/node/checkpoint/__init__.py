"""Checkpoints: move a process's device memory to the host and back, by the CUDA driver."""
