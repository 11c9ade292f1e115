"""`dragoman serve`: serve models over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from typing import TYPE_CHECKING

from dragoman.cli.console.flags import add_flags, add_usage, list_server_settings
from dragoman.cli.console.text import print_status
from dragoman.cli.models.pull import choose_model
from dragoman.cli.serving.log_handler import configure_logging
from dragoman.config import Configuration, Settings
from dragoman.errors import DragomanError

if TYPE_CHECKING:
    from dragoman.http.network.sockets import ListeningSockets

log = logging.getLogger("dragoman.server")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS] [MODEL]",
        examples=(
            "dragoman serve",
            "dragoman serve ./model.gguf --context 16k --port 8080",
            "dragoman serve qwen3 --host 0.0.0.0 --api-key SECRET",
            "dragoman serve --upstream http://127.0.0.1:8080",
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


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.models.memory import prepare_planning

    prepare_planning()  # while the modules below are imported
    from dragoman.http.network.sockets import open_sockets
    from dragoman.http.server import run_event_loop

    with open_sockets(settings.host, settings.port) as sockets:
        model = choose_model(arguments.model, settings)
        configure_logging(settings, queued=True)
        configuration: Configuration = arguments.configuration
        run_event_loop(serve_models(configuration, model, sockets))


def warn_about_risks(configuration: Configuration) -> None:
    """Warn about how the server was started, where other users of the machine gain from it."""
    if os.geteuid() == 0:
        log.warning(
            "the server runs as root, so a flaw in it would expose the whole machine; "
            "run it as a user of its own (docs/deploying.md)"
        )
    for flag in configuration.list_exposed_secrets():
        log.warning(
            "%s on the command line can be read by all users of this machine; put keys into "
            "dragoman.yaml or --api-key-file (docs/operating.md)",
            flag,
        )


async def serve_models(configuration: Configuration, model: str, sockets: ListeningSockets) -> None:
    """Serve the models on disk.

    The default one loads while the server already answers. But a process that takes over from
    another server loads it first, and does not wait for an upstream server that is down.
    """
    from dragoman.http import server
    from dragoman.http.network.handover import notify_service_manager
    from dragoman.runtime import StartupError, build_models, build_runtime, open_store
    from dragoman.runtime.startup_model import load_startup_model

    settings, predecessor = configuration.settings, sockets.predecessor
    may_wait = settings.upstream_wait != 0 and predecessor is None
    models = build_models(settings, model, may_wait=may_wait)
    runtime = build_runtime(models, settings, load_settings=configuration.reload)
    app = server.make_app(runtime, local=True)
    name = app.readiness.startup_model = models.default_name

    def announce(url: str) -> None:
        if predecessor is None:
            doing = f"loading {name}" if name else "waiting for the upstream server"
            print_status(f"Listening on {url} ({doing})")
        else:
            print_status(f"Listening on {url}")
            predecessor.confirm()

    running = server.make_server(app, settings, announce)
    running.is_main_program = True
    await open_store(runtime)  # cleans up after a server that was killed
    warn_about_risks(configuration)  # after all that may be wrong with the settings
    failures: list[DragomanError] = []

    async def preload() -> None:
        try:
            entry = await load_startup_model(models, settings, may_wait=may_wait)
            app.readiness.end_startup(entry.id)
            server.tune_process()
            print_status(f"Serving {entry.id}. Press Ctrl-C to stop.")
            notify_service_manager("READY=1")
        except DragomanError as error:
            if not running.should_exit:  # else Ctrl-C has unloaded the model
                failures.append(error)
            running.should_exit = True

    loading = asyncio.create_task(preload())
    try:
        if predecessor is not None:
            await loading
        if not failures:
            await running.serve(sockets)
    finally:
        loading.cancel()
    if failures:
        raise StartupError(failures[0].message)
