"""Decides how a model is loaded, and starts the native server with it."""
