"""Admission: decides whether a request for device shares fits beside the existing grants."""
