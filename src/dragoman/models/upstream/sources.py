"""The models of an upstream server in the catalog: one, or all that the server lists."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.models.catalog import ModelCatalog, ModelSource
from dragoman.models.mapping import ModelOptions
from dragoman.models.upstream.discover import make_remote_settings
from dragoman.models.upstream.identify import list_models
from dragoman.models.upstream.probe_client import ProbeClient
from dragoman.models.upstream.server_info import shorten_name


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
