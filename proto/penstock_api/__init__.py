"""Messages and services of Penstock's API, generated from the .proto files: `make proto`."""
