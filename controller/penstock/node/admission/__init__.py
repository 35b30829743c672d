"""Admission: whether a request for shares of devices fits beside what is granted, and its grant."""
