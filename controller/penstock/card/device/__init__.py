"""The front-end of the virtual card: the device penstock in the program that uses it."""
