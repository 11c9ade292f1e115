"""Dragoman serves open models to the programs people already use.

    import dragoman

    dragoman.serve(MyEngine())                     # blocks, like a server does
    await dragoman.serve_async(MyEngine())         # the same inside a running event loop
    app.mount("/llm", dragoman.app(MyEngine()))    # inside somebody's ASGI app

An engine is any object with `generate(job)` (see `dragoman.types.Engine`), or with only
`async def generate_request(obj)` that yields cumulative dicts. `dragoman.testing.check_engine` says
whether it does what is expected of one.

What models say can be read without serving anything:

    parser = dragoman.OutputParser("hermes_json", "think", tools=tools)
    spans = parser.feed(piece)                     # and `close()` at the end

See `dragoman.output`; `dragoman.detect` finds a format from a chat template.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman._version import __version__

if TYPE_CHECKING:
    from dragoman.detection import detect
    from dragoman.http.app import App
    from dragoman.output.library import (
        OutputParser,
        list_formats,
        parse_reasoning_complete,
        parse_tool_call_complete,
    )

__all__ = [
    "OutputParser",
    "__version__",
    "app",
    "detect",
    "list_formats",
    "parse_reasoning_complete",
    "parse_tool_call_complete",
    "serve",
    "serve_async",
]


def __getattr__(name: str) -> Any:
    """The library's functions, imported when they are first used."""
    if name == "detect":
        from dragoman.detection import detect

        return detect
    if name in __all__:
        from dragoman.output import library

        return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def app(engine: Any, **options: Any) -> App:
    """An ASGI app that answers with this engine, to be mounted at any path.

    Options are `name` (what the model is called), `chat_template` (Jinja source, or a `Path` to a
    file with it), and every field of `dragoman.config.Settings`; `tool_parser` and
    `reasoning_parser` mean `format` and `reasoning_format`. An engine that has a `tokenizer` is
    given token ids, any other the rendered text.
    """
    from dragoman.http.server import make_app
    from dragoman.runtime import build_engine_runtime

    return make_app(build_engine_runtime(engine, options), local=False)


def serve(engine: Any, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> None:
    """Serve this engine until a signal says stop. Options as for `app`."""
    from dragoman.http.server import run_event_loop

    run_event_loop(serve_async(engine, host, port, **options))


async def serve_async(
    engine: Any, host: str = "127.0.0.1", port: int = 8000, **options: Any
) -> None:
    """The same as `serve`, to be awaited."""
    from dragoman.http import server
    from dragoman.runtime import build_engine_runtime

    options |= {"host": host, "port": port}
    await server.serve(server.make_app(build_engine_runtime(engine, options), local=True))
