"""Kubernetes objects: the API client, its cache, and what our annotations and fields say."""
