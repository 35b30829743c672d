"""Devices of this machine: real or simulated, behind one interface."""
