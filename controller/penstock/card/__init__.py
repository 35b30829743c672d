"""The virtual card: many unlike cards as one PyTorch device, torch.device("penstock")."""
