"""What a PyTorch program does with its part of each batch, so that it trains as with all of it."""
