"""Shares by claims, on nodes that are started once for all tests here."""
