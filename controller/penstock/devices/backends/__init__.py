"""Device backends: one module for each vendor's devices, and one for simulated devices."""
