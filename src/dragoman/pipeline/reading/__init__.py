"""Helpers of the readers: split steps into tokens, count tokens, limit repeated calls."""
