"""`dragoman.serve`: serve an engine that a program brings.

The address, the name of the model and a line for each request are printed, as `dragoman serve` does
it. A program that has configured logging keeps its configuration: then the lines go where it says.
"""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.cli.console.text import print_status
from dragoman.cli.serving.log_handler import log_to_stderr
from dragoman.http.network.handover import notify_service_manager
from dragoman.http.network.sockets import open_sockets
from dragoman.http.server import make_app, make_server, run_event_loop, tune_process
from dragoman.runtime import build_engine_runtime


def run(engine: object, options: Mapping[str, object]) -> None:
    """Serve an engine until a signal stops the server, and return then."""
    run_event_loop(serve(engine, options, raises_signals=False))


async def serve(
    engine: object, options: Mapping[str, object], *, raises_signals: bool = True
) -> None:
    """Serve an engine until a signal stops the server.

    `raises_signals`: raise the signal again at the end, for the program around this server.
    """
    app = make_app(build_engine_runtime(engine, options), local=True)
    name = app.runtime.services.models.default_name

    def announce(url: str) -> None:
        print_status(f"Listening on {url}")
        print_status(f"Serving {name}. Press Ctrl-C to stop.")
        notify_service_manager("READY=1")
        if sockets.predecessor is not None:
            sockets.predecessor.confirm()

    running = make_server(app, app.settings, announce)
    running.raises_signals = raises_signals
    running.is_main_program = not raises_signals
    with (
        open_sockets(app.settings.host, app.settings.port) as sockets,
        log_to_stderr(app.settings, sets_level="log_level" in options),
    ):
        tune_process()
        await running.serve(sockets)
