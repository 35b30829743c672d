"""Training jobs: a program for one device, on unlike cards, started again when it fails."""
