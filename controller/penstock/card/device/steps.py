"""Steps of the program: how often it has called backward."""

count = 0
