"""Reads values of JSON, and what resembles them, while they arrive."""
