"""`dragoman serve`: serve models over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import socket

from dragoman.cli.console.flags import add_command, add_flags, list_server_settings
from dragoman.cli.pull import choose_model
from dragoman.cli.serving.log_handler import configure_logging
from dragoman.config import Settings
from dragoman.errors import DragomanError


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = add_command(
        commands,
        "serve",
        "serve models over HTTP",
        usage="dragoman serve [FLAGS] [MODEL]",
        examples=(
            "dragoman serve",
            "dragoman serve ./model.gguf --context 16k --port 8080",
            "dragoman serve qwen3 --host 0.0.0.0 --api-key SECRET",
        ),
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="name or file of a model, a directory of models, or owner/repo of Hugging Face "
        "(default: --default-model)",
    )
    add_flags(parser, list_server_settings())
    return parser


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.http.server import bind_sockets, run_event_loop

    with bind_sockets(settings.host, settings.port) as sockets:
        model = choose_model(arguments.model, settings)
        configure_logging(settings, queued=True)
        run_event_loop(serve_models(settings, model, sockets))


async def serve_models(settings: Settings, model: str, sockets: list[socket.socket]) -> None:
    """Serve the models on disk. The default one loads while the server already answers."""
    from dragoman.http import server
    from dragoman.runtime import StartupError, build_models, build_runtime, open_store

    models = build_models(settings, model)
    runtime = build_runtime(models, settings)
    app = server.make_app(runtime, local=True)
    await open_store(runtime)  # cleans up after a server that was killed
    name = app.readiness.startup_model = models.default_name
    running = server.make_server(
        app, settings, lambda url: print(f"Listening on {url} (loading {name})", flush=True)
    )
    failures: list[DragomanError] = []

    async def preload() -> None:
        try:
            entry = await models.load(name, wait=float("inf"))
            server.tune_process()
            print(f"Serving {entry.id}. Press Ctrl-C to stop.", flush=True)
        except DragomanError as error:
            failures.append(error)
            running.should_exit = True

    loading = asyncio.create_task(preload())
    try:
        await running.serve(sockets)
    finally:
        loading.cancel()
    if failures:
        raise StartupError(failures[0].message)
