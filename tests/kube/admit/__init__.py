"""Admission on a real API server, by a webhook that is started once for all tests here."""
