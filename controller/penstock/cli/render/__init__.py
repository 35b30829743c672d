"""Rendering of tables and of the live `penstock top` screen, and the data feed for both."""
