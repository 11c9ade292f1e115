"""Loaders that turn a `ModelSource` into a loaded `Model`."""
