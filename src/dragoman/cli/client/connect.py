"""Chooses between a running server and a model that is loaded here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from dragoman.cli.client.client import DragomanClient
from dragoman.cli.client.local_transport import LocalTransport
from dragoman.cli.client.server_transport import ClientTls, ServerTransport
from dragoman.cli.client.transport import RequestFailed
from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.models.pull import choose_model
from dragoman.config import Settings
from dragoman.options import mask_password

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # to listen on, to connect to


def get_server_url(settings: Settings) -> str:
    """Return the URL of the server to use: the one that is set, else where ours listens."""
    host = ANY_ADDRESS.get(settings.host, settings.host)
    scheme = "https" if settings.tls_cert else "http"
    return settings.url or f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


def make_transport(settings: Settings, key: str | None = None) -> ServerTransport:
    """Return what sends requests to the server to use."""
    tls = ClientTls(
        ca_file=settings.ca_file,
        cert=settings.client_cert,
        key=settings.client_key,
        server_cert="" if settings.url else settings.tls_cert,
    )
    return ServerTransport(get_server_url(settings), key, tls)


def find_server(settings: Settings, *, admin: bool = False) -> DragomanClient | None:
    """Return a client of the running server; None if none runs. A URL that is set must work."""
    transport = make_transport(settings, choose_key(settings, admin))
    try:
        if transport.is_dragoman():
            return DragomanClient(transport)
    except RequestFailed:
        if settings.url:
            raise
        return None
    if settings.url:
        raise RequestFailed(f"The server at {transport.address} is not a dragoman server.")
    return None


def connect(settings: Settings, *, admin: bool = False) -> DragomanClient:
    """Return a client of the running server, which is needed."""
    client = find_server(settings, admin=admin)
    if client is None:
        raise RequestFailed(
            f"No server is running at {mask_password(get_server_url(settings))}. "
            "`dragoman serve` starts one; --url names another address."
        )
    return client


def open_client(
    model: str | None, settings: Settings, *, is_local: bool = False
) -> tuple[DragomanClient, str]:
    """Return a client and the name of the model there, which is loaded here if necessary.

    `is_local` loads it here even if a server runs.
    """
    server = None if is_local else find_server(settings)
    if server is not None:
        served = find_served_model(server, model, is_required=bool(settings.url))
        if served is not None:
            server.on_loading = lambda: notify(f"{served} is still loading …")
            return server, served
        notify(f"The server at {server.address} does not have {model}; loading it here.")
    return load_here(model, settings, notify)


def find_served_model(
    server: DragomanClient, model: str | None, *, is_required: bool
) -> str | None:
    """Return the id of a model on a server; without a name, of its default model."""
    if model is None:
        models = server.list_models()
        ready = [card for card in models if card.status == "ready"]
        return next((card.id for card in ready or models), None)
    if os.path.exists(model) and not is_required:  # a path, which a server does not accept
        return None
    try:
        return server.get_model(model).id
    except RequestFailed as error:
        if error.http_status != 404 or is_required:
            raise
        return None


def load_here(
    model: str | None, settings: Settings, report: Callable[[str], None]
) -> tuple[DragomanClient, str]:
    """Load a model in this process."""
    name = choose_model(model, settings)
    client = DragomanClient(LocalTransport(settings, name, lambda: report(f"Loading {name} …")))
    return client, client.list_models()[0].id


def choose_key(settings: Settings, admin: bool) -> str | None:
    """Return the key to send: an admin key is only sent where it is needed."""
    keys = [*settings.api_key]
    if settings.api_key_file and not keys:
        from dragoman.keys.entries import KeyFileError
        from dragoman.keys.key_file import read_plain_keys

        try:
            keys = read_plain_keys(Path(settings.api_key_file))
        except KeyFileError as error:
            raise CommandFailed(f"{error}.") from None
    order = [*settings.admin_key, *keys] if admin else [*keys, *settings.admin_key]
    return next(iter(order), None)


def notify(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
