"""Resolves the model name of a request.

A name that a client sends is looked up in the catalog. Without a name, it is the model that the
operator started the server with, or the only one that the owner of the request may use; if there
are several, the client must choose. With `--any-model`, every other name means the default model,
and answers repeat the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dragoman.errors import (
    BadRequest,
    DragomanError,
    MissingParameter,
    ModelNotFound,
    Unavailable,
)
from dragoman.models.catalog import ModelCatalog, ModelSource, list_names
from dragoman.options import suggest

MAX_LISTED = 20  # names in an error


class ModelNames:
    """Resolves the names of models in requests."""

    def __init__(
        self, catalog: ModelCatalog, any_model: bool, is_loaded: Callable[[ModelSource], bool]
    ) -> None:
        self._catalog = catalog
        self._any_model = any_model
        self._is_loaded = is_loaded
        # whether an owner may use the model with these names
        self.may_use: Callable[[str, Iterable[str]], bool] = lambda owner, names: True

    def find(self, name: str, owner: str) -> ModelSource | None:
        """Find the model that a request of an owner means, or None."""
        if not name.strip() and not self._any_model:
            return None if self._catalog.listing_error else self._find_only(owner)
        source = self._catalog.find(name)
        if source is None and self._any_model:
            source = self.find_default()
        return source if source is not None and self.allows(owner, source) else None

    def allows(self, owner: str, source: ModelSource) -> bool:
        return self.may_use(owner, list_names(source))

    def list_usable(self, owner: str) -> list[ModelSource]:
        """List the models that an owner may use."""
        return [source for source in self._catalog.list_sources() if self.allows(owner, source)]

    def find_default(self) -> ModelSource | None:
        """Return the operator's first model, else a loaded one, else any that can be loaded."""
        if self._catalog.added:
            return self._catalog.added[0]
        if self._catalog.listing_error is not None:
            return None
        sources = self._catalog.list_sources()
        for source in sources:
            if self._is_loaded(source):
                return source
        usable = [source for source in sources if source.broken is None and source.kind == "gguf"]
        return next(iter(usable or sources), None)

    def get_answer_name(self, name: str, model_id: str, aliases: tuple[str, ...]) -> str:
        """Return the name of a model in an answer: the client's, if it is one of the model's."""
        name = name.strip()
        return name if name in aliases or (name and self._any_model) else model_id

    def make_not_found(self, name: str, owner: str) -> DragomanError:
        """Return the error for a name; a server that is not up yet may have a model with it."""
        listing_error = self._catalog.listing_error
        if listing_error is not None:
            return Unavailable(listing_error.message, retry_after=listing_error.retry_after)
        sources = self.list_usable(owner)
        names = [source.id for source in sources[:5]]
        available = f"Available: {', '.join(names)}." if names else "No models are installed."
        if not name.strip():
            return ModelNotFound(f"There is no model to answer with. {available}", param="model")
        hint = suggest(name, [item for source in sources for item in list_names(source)])
        return ModelNotFound(
            f"The model `{sanitize_name(name)}` does not exist. {hint.strip() or available}",
            param="model",
        )

    def _find_only(self, owner: str) -> ModelSource | None:
        """Find the model of a request without a name."""
        added = self._catalog.added
        if len(added) == 1 and self.allows(owner, added[0]):
            return added[0]
        sources = self.list_usable(owner)
        if len(sources) > 1:
            names = ", ".join(f"`{source.id}`" for source in sources[:MAX_LISTED])
            more = f" and {len(sources) - MAX_LISTED} more" if len(sources) > MAX_LISTED else ""
            raise BadRequest(
                f"`model` is required: several models are served. Available: {names}{more}.",
                param="model",
                code=MissingParameter.code,
            )
        return next(iter(sources), None)


def sanitize_name(name: str) -> str:
    """Make a client's model name safe to show in a message."""
    return "".join(
        character if character.isprintable() else "\ufffd" for character in name.strip()[:100]
    )
