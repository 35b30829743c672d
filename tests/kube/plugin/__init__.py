"""Shares by extended resources, on nodes that are started once for all tests here."""
