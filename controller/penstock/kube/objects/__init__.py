"""Kubernetes objects: API client, cache, and readers for our annotations and fields."""
