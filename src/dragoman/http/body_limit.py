"""How large a request body may be.

Unless the operator sets a limit, it follows from the context of the models: as many tokens as fit
into the largest one, each of the longest kind, each character escaped as in `\\u0041`. Media, tools
and stored items need room whatever the context is, so there is a minimum. The maximum keeps what
one request can cost within bounds: a body is in memory twice while it is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dragoman.config import Settings
from dragoman.models.model import Model

ESCAPE = 6  # bytes of an escaped character
MINIMUM = 8 << 20  # bytes
MAXIMUM = 24 << 20  # also the limit for models that read media, and while no model is loaded


class BodyLimit:
    """The limit of a server, which changes with its models and its settings."""

    def __init__(self, settings: Settings, list_models: Callable[[], Iterable[Model]]) -> None:
        self._settings = settings
        self._list_models = list_models

    def get(self) -> int:
        """Return the limit in bytes."""
        return self._settings.body_limit or max(
            map(_find_limit, self._list_models()), default=MAXIMUM
        )

    def explain(self) -> str:
        """Return a sentence that says where the limit comes from."""
        if self._settings.body_limit is not None:
            return "The server's --body-limit can raise this."
        return "This follows from the model's context; the server's --body-limit can raise it."


def _find_limit(model: Model) -> int:
    capabilities = model.capabilities
    if capabilities.context is None or set(capabilities.modalities) != {"text"}:
        return MAXIMUM
    text = ESCAPE * model.make_prompt_limit("prompt").characters
    return min(max(text, MINIMUM), MAXIMUM)
