"""GGUF models, run by the native server of `xllamacpp`."""

from __future__ import annotations

from typing import Any


def create(**settings: Any) -> Any:
    """Load a model; see `engine` for the settings."""
    from dragoman.engines.llamacpp.engine import create as make

    return make(**settings)
