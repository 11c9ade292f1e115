"""An OpenAI-, Anthropic- and Ollama-compatible server for open models.

    import dragoman

    dragoman.serve(MyEngine())                     # blocks until the server stops
    await dragoman.serve_async(MyEngine())         # the same in a running event loop
    app.mount("/llm", dragoman.app(MyEngine()))    # inside another ASGI app

An engine is any object with `generate(job)` (see `dragoman.types.Engine`), or only with
`async def generate_request(obj)` that yields cumulative dicts. `dragoman.testing.check_engine`
checks that an object is a correct engine.

The output of models can be parsed without a server:

    parser = dragoman.OutputParser("hermes_json", "think", tools=tools)
    spans = parser.feed(piece)                     # and `close()` at the end

See `dragoman.output`; `dragoman.detect` detects the formats of a chat template.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from dragoman.types import Capabilities, Engine, Job, Logprob, Sampling, Step

_TYPES = ("Capabilities", "Engine", "Job", "Logprob", "Sampling", "Step")
__all__ = [
    "Capabilities",
    "Engine",
    "Job",
    "Logprob",
    "OutputParser",
    "Sampling",
    "Step",
    "__version__",
    "app",
    "detect",
    "list_formats",
    "parse_reasoning_complete",
    "parse_tool_call_complete",
    "serve",
    "serve_async",
]


def __getattr__(name: str) -> object:
    """Import the functions of the library when they are first used."""
    if name == "detect":
        from dragoman.detection import detect

        return detect
    if name in _TYPES:
        from dragoman import types

        return getattr(types, name)
    if name in __all__:
        from dragoman.output import library

        return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def app(engine: object, **options: object) -> App:
    """Return an ASGI app for this engine, which can be mounted at any path.

    Options are every field of `dragoman.config.Settings` (`tool_parser` and `reasoning_parser` mean
    `format` and `reasoning_format`) and:

    - `name`: of the model.
    - `chat_template`: Jinja source, or a path to a file with it.
    - `special_tokens`: variables of the template, such as `{"bos_token": "<s>"}`; `bos_token` and
      `eos_token` are options of their own, too.
    - `tokenizer`: a directory with a `tokenizer.json`, or a tokenizer of `tokenizers` or
      `transformers`. With one, as an option or as an attribute of the engine, the engine gets token
      ids; without one, it gets the rendered text.
    - `tracer_provider`: of OpenTelemetry, for spans.

    `docs/engines.md` describes how to write an engine.
    """
    from dragoman.http.server import make_app
    from dragoman.runtime import build_engine_runtime, name_options_of_programs

    with name_options_of_programs():
        return make_app(build_engine_runtime(engine, options), local=False)


def serve(
    engine: object, host: str | None = None, port: int | None = None, **options: object
) -> None:
    """Serve this engine until Ctrl-C or SIGTERM stops the server. Options are those of `app`.

    The address is 127.0.0.1:8000 unless it is given here, or in the environment (`DRAGOMAN_PORT`).
    Prints the address and the name of the model, and logs each request to standard error unless
    the program has configured `logging` itself.
    """
    from dragoman.cli.serving.serve_engine import run
    from dragoman.runtime import name_options_of_programs

    with name_options_of_programs():
        run(engine, {**options, "host": host, "port": port})


async def serve_async(
    engine: object, host: str | None = None, port: int | None = None, **options: object
) -> None:
    """Serve this engine in a running event loop, like `serve`.

    A signal that stops the server is raised again for the program around it.
    """
    from dragoman.cli.serving.serve_engine import serve
    from dragoman.runtime import name_options_of_programs

    with name_options_of_programs():
        await serve(engine, {**options, "host": host, "port": port})
