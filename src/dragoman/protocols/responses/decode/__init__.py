"""Decode Responses requests: the body, its items and tools, and the messages for the model."""
