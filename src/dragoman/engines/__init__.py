"""Engines: prompt in, tokens out.

One engine per file, each behind the small `Engine` protocol of `types`. The registry names the
factories by import string, so that no engine's libraries are imported before it is wanted.
"""

from __future__ import annotations

from dragoman.types import Capabilities, Engine

# engines that run models from files
FACTORIES = {
    "llamacpp": "dragoman.engines.llamacpp:create",
}


def get_factory(name: str) -> str:
    """Where the engine of that name is made, or a `ValueError` that lists the choices."""
    if name not in FACTORIES:
        raise ValueError(f"There is no engine {name!r}. Engines: {', '.join(FACTORIES)}.")
    return FACTORIES[name]


def get_capabilities(engine: Engine) -> Capabilities:
    """What the engine says it can do, or that it takes text and does nothing special."""
    said = getattr(engine, "capabilities", None)
    return said if isinstance(said, Capabilities) else Capabilities()
