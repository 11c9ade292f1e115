"""Engines: prompt in, tokens out.

One engine per file, each behind the small `Engine` protocol of `types`. The registry names the
factories by import string, so that no engine's libraries are imported before it is wanted.
"""

from __future__ import annotations

from dragoman.types import Capabilities, Engine

FACTORIES = {
    "llamacpp": "dragoman.engines.llamacpp:create",
    "scripted": "dragoman.testing.scripted:create",
}


def capabilities_of(engine: Engine) -> Capabilities:
    """What the engine says it can do, or that it takes text and does nothing special."""
    said = getattr(engine, "capabilities", None)
    return said if isinstance(said, Capabilities) else Capabilities()
