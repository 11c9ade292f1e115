"""Loads the model that a server was started for, and waits for the server that runs it.

Containers start in any order, so an upstream server that does not answer yet is not an error: it is
asked again, after ever longer delays, while ours answers 503. A server that answers but cannot be
used (another tokenizer, a rejected key, an untrusted certificate) ends the program.
"""

from __future__ import annotations

import asyncio
import logging
import math

from dragoman.config import Settings
from dragoman.errors import DragomanError, Overloaded, Unavailable
from dragoman.models.catalog import ModelCatalog
from dragoman.models.registry import ModelEntry, ModelRegistry
from dragoman.options.secrets import mask_password
from dragoman.runtime.model_catalog import add_models, ask_for_models

log = logging.getLogger("dragoman.upstream")

FIRST_DELAY = 0.5  # seconds until a server is asked again; doubled each time
MAX_DELAY = 5.0


async def load_startup_model(
    models: ModelRegistry, settings: Settings, *, may_wait: bool
) -> ModelEntry:
    """Load the default model; raise a `DragomanError` if it cannot be used, or not in time."""
    loop = asyncio.get_running_loop()
    limit = math.inf if settings.upstream_wait < 0 else settings.upstream_wait
    deadline = loop.time() + limit if may_wait else -math.inf
    delay = FIRST_DELAY
    last_reason = ""
    while True:
        try:
            if models.catalog.listing_error is not None:
                await asyncio.to_thread(list_upstream_models, models.catalog, settings)
            return await models.load(models.default_name, wait=math.inf)
        except (Unavailable, Overloaded) as error:
            url = find_upstream_url(models, settings)
            if not url or loop.time() >= deadline:
                raise
            level = logging.WARNING if error.message != last_reason else logging.DEBUG
            log.log(level, "waiting for the upstream server %s: %s", mask_password(url), error)
            last_reason = error.message
        await asyncio.sleep(max(0.0, min(delay, deadline - loop.time())))
        delay = min(delay * 2, MAX_DELAY)


def list_upstream_models(catalog: ModelCatalog, settings: Settings) -> None:
    """Ask the server of `--upstream` for its models, and put them into the catalog."""
    try:
        sources = ask_for_models(catalog, settings, "")
    except Unavailable as error:
        catalog.listing_error = error
        raise
    add_models(catalog, settings, sources)
    catalog.listing_error = None


def find_upstream_url(models: ModelRegistry, settings: Settings) -> str:
    """Return the address of the server that runs the default model; "" if none does."""
    if models.catalog.listing_error is not None:
        return settings.upstream or ""
    try:
        return models.get_source(models.default_name).options.upstream or ""
    except DragomanError:
        return ""
