"""The virtual card: many accelerators, of one or several nodes, as one PyTorch device."""
