"""`penstock pool estimate`: how much compute and memory a model needs."""
