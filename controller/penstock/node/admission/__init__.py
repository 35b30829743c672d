"""Admission: decides whether a request for device shares fits with the existing grants."""
