"""The models of an upstream server in the catalog: one, or all that the server lists."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from msgspec.structs import replace

from dragoman.models.catalog import ModelCatalog, ModelSource
from dragoman.models.mapping import ModelOptions
from dragoman.models.upstream.discover import make_remote_settings
from dragoman.models.upstream.identify import list_models
from dragoman.models.upstream.probe_client import ProbeClient

SUFFIX = re.compile(r"\.gguf$", re.IGNORECASE)


def open_upstream(
    catalog: ModelCatalog, options: ModelOptions, model: str = "", key: str = ""
) -> list[ModelSource]:
    """Return the model with a name on a server, or all of its models, the default one first.

    Only the list of models is asked for. Raises a `DragomanError` if the server does not answer.
    """
    named = options.upstream_model or model
    if named:
        chosen = replace(options, upstream_model=named)
        return [catalog.open_upstream(model or shorten_name(named), chosen)]
    client = ProbeClient(make_remote_settings(options.with_defaults(catalog.base), key))
    return [
        catalog.open_upstream(shorten_name(name), replace(options, upstream_model=name))
        for name in list_models(client)
    ]


def shorten_name(name: str) -> str:
    """Return the name of a model; of a path, as llama-server and vLLM may use one, its end."""
    is_path = name.startswith(("/", ".", "~")) or "\\" in name or bool(SUFFIX.search(name))
    if not is_path:
        return name
    return SUFFIX.sub("", PurePosixPath(name.replace("\\", "/")).name) or name
