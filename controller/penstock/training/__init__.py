"""Training of one program on several unlike cards, each with a part of every batch."""
