"""The command line: `serve`, `chat`, `pull`, `list`, `explain` and `formats`."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from dragoman import config
from dragoman._version import __version__
from dragoman.cli.log_handler import Journal
from dragoman.config import Settings
from dragoman.errors import DragomanError

log = logging.getLogger("dragoman")
LINE = "%(asctime)s %(levelname)s %(message)s"

# flag, settings field, type, what it says in --help
FLAGS: list[tuple[str, str, Any, str]] = [
    ("--host", "host", str, "address to listen on (127.0.0.1)"),
    ("--port", "port", int, "port to listen on (8000)"),
    ("--models-dir", "models_dir", str, "where models are kept (the user's cache)"),
    ("--models-file", "models_file", str, "names and settings of models (models.yaml there)"),
    ("--served-name", "served_name", "list", "a further name for MODEL; may be repeated"),
    ("--any-model", "any_model", bool, "answer every model name with MODEL"),
    ("--chat-template", "chat_template", str, "a file that replaces the model's own template"),
    ("--format", "format", str, "how tool calls are written (found from the template)"),
    ("--reasoning-format", "reasoning_format", str, "how thoughts are written (likewise)"),
    ("--engine", "engine", str, "what runs models from files (llamacpp)"),
    ("--context", "context", int, "tokens of prompt and answer together"),
    ("--slots", "slots", int, "answers generated at once (4)"),
    ("--threads", "threads", int, "threads of the engine (all cores)"),
    ("--gpu-layers", "gpu_layers", int, "layers on the GPU (the engine decides)"),
    ("--lora", "lora", "list", "NAME=PATH of a LoRA adapter for MODEL; may be repeated"),
    ("--memory", "memory", int, "most bytes of models kept loaded (no limit)"),
    ("--keep-alive", "keep_alive", float, "seconds an idle model stays loaded (-1, for ever)"),
    ("--load-wait", "load_wait", float, "seconds a request waits for its model to load (120)"),
    ("--queue", "queue", int, "requests that may wait for a slot (256)"),
    ("--api-key", "api_key", "list", "a key that requests must show; may be repeated"),
    ("--api-key-file", "api_key_file", str, "a file with a key on each line, re-read on change"),
    ("--admin-key", "admin_key", "list", "a key for loading and unloading; may be repeated"),
    ("--allow-open", "allow_open", bool, "listen beyond this machine without a key"),
    ("--allowed-host", "allowed_host", "list", "a further Host to answer to; may be repeated"),
    ("--strict-params", "strict_params", bool, "refuse unknown fields at the top of a request"),
    ("--mcp", "mcp", "list", "LABEL=URL of a server of remote tools; may be repeated"),
    ("--mcp-hosts", "mcp_hosts", "list", "HOST[:PORT] requests may name; may be repeated"),
    ("--mcp-rounds", "mcp_rounds", int, "times an answer may call remote tools and go on (16)"),
    ("--mcp-timeout", "mcp_timeout", float, "seconds a remote server may take to answer (60)"),
    ("--mcp-output", "mcp_output", int, "characters shown of a remote tool's output (65536)"),
    ("--body-limit", "body_limit", int, "most bytes of a request's body (32 MiB)"),
    ("--store", "store", str, "sqlite:///PATH or postgresql://… for what is kept (a user's file)"),
    ("--store-ttl", "store_ttl", float, "seconds responses are kept (30 days)"),
    ("--store-size", "store_size", int, "most bytes of all that is kept (1 GiB)"),
    ("--no-recall", "recall", "off", "tell models what they said as clients tell it"),
    ("--drain", "drain", float, "seconds streams may go on after SIGTERM (30)"),
    ("--log-level", "log_level", str, "debug, info, warning or error (info)"),
]
COMMON = ("models_dir", "models_file", "log_level")
RUNNING = (
    *("chat_template", "format", "reasoning_format", "engine"),
    *("context", "slots", "threads", "gpu_layers", "lora"),
)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="dragoman",
        description="Serve open models to the programs people already use.",
        epilog=f"Every flag can also be set as {config.PREFIX}<NAME> in the environment.",
    )
    top.add_argument("--version", action="version", version=f"dragoman {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a model over HTTP")
    serve.add_argument("model", nargs="?", help="a file, or a name (the default model)")
    add_flags(serve, [field for _, field, _, _ in FLAGS])
    chat = commands.add_parser("chat", help="talk to a model in the terminal")
    chat.add_argument("model", nargs="?", help="a file, or a name (the default model)")
    chat.add_argument("--system", help="what the model is told first")
    chat.add_argument("--temperature", type=float, help="0 is always the likeliest answer")
    add_flags(chat, [*COMMON, *RUNNING])
    pull = commands.add_parser("pull", help="fetch a model")
    pull.add_argument("model", help="smollm2-135m, or hf:owner/repo[/file]")
    add_flags(pull, COMMON)
    show = commands.add_parser("list", help="show the models that are there")
    add_flags(show, COMMON)
    told = commands.add_parser("explain", help="say how a model writes calls and thoughts")
    told.add_argument("model", help="a name, a .gguf, a .jinja or a tokenizer_config.json")
    told.add_argument("--json", action="store_true", help="as JSON")
    told.add_argument("--source", action="store_true", help="with the template itself")
    add_flags(told, [*COMMON, "chat_template"])
    table = commands.add_parser("formats", help="show the formats that are known")
    add_flags(table, ["log_level"])
    return top


def add_flags(command: argparse.ArgumentParser, fields: Sequence[str]) -> None:
    for flag, field, kind, text in FLAGS:
        if field not in fields:
            continue
        if kind is bool:
            command.add_argument(flag, dest=field, action="store_true", default=None, help=text)
        elif kind == "off":
            command.add_argument(flag, dest=field, action="store_false", default=None, help=text)
        elif kind == "list":
            command.add_argument(flag, dest=field, action="append", metavar="X", help=text)
        else:
            command.add_argument(flag, dest=field, type=kind, metavar="X", help=text)


def main(arguments: Sequence[str] | None = None) -> None:
    said = parser().parse_args(arguments)
    names = [field for _, field, _, _ in FLAGS]
    try:
        settings = config.load({name: getattr(said, name, None) for name in names})
    except config.SettingsError as error:
        sys.exit(f"dragoman: {error}")
    set_up_logging(settings)
    commands = {"serve": serve, "chat": chat, "pull": pull, "list": show}
    commands |= {"explain": explain, "formats": formats}
    from dragoman.runtime import StartupError

    if isinstance(sys.stdout, io.TextIOWrapper):  # not every locale has a letter for everything
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        commands[said.command](said, settings)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as `head` does
        let_go()
        sys.exit(1)
    except (DragomanError, StartupError) as error:
        sys.exit(f"dragoman: {error}")
    except OSError as error:
        let_go()
        log.debug("something could not be read or written", exc_info=error)
        where = f": {error.filename}" if error.filename else ""
        sys.exit(f"dragoman: {error.strerror or error}{where}")
    except KeyboardInterrupt:
        sys.exit(130)


def let_go() -> None:
    """Drop what cannot be written, or Python tries again at its end and complains."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def set_up_logging(settings: Settings) -> None:
    level = logging.getLevelName(settings.log_level.upper())
    if not isinstance(level, int):
        sys.exit(f"dragoman: there is no log level {settings.log_level!r}")
    logging.basicConfig(format=LINE, level=logging.WARNING)
    logging.getLogger("dragoman").setLevel(level)


def chosen_model(said: argparse.Namespace, settings: Settings) -> str:
    """The model on the command line, else the default one, fetched if it is not there."""
    from dragoman import runtime

    if said.model:
        return str(said.model)
    return runtime.default_model(settings)


def serve(said: argparse.Namespace, settings: Settings) -> None:
    from dragoman import runtime

    model = chosen_model(said, settings)
    logging.basicConfig(format=LINE, handlers=[Journal(sys.stderr.fileno())], force=True)
    runtime.run(runtime.serve_models(settings, model, print))


def chat(said: argparse.Namespace, settings: Settings) -> None:
    from dragoman import runtime
    from dragoman.cli import terminal
    from dragoman.types import Sampling

    model = chosen_model(said, settings)
    logging.getLogger("dragoman").setLevel(logging.WARNING)
    sampling = Sampling(temperature=said.temperature)
    models = runtime.find_models(settings, model)
    asyncio.run(terminal.talk(models, said.system, sampling))


def pull(said: argparse.Namespace, settings: Settings) -> None:
    from dragoman.models.pull import Bar
    from dragoman.models.pull import pull as fetch

    bar = Bar(sys.stderr)
    path = fetch(said.model, settings.models_path, bar)
    bar.close()
    print(f"{said.model} is in {path}")


def show(said: argparse.Namespace, settings: Settings) -> None:
    from dragoman import runtime

    entries = runtime.catalog(settings).entries()
    if not entries:
        print("No models yet. `dragoman pull smollm2-135m` fetches the default one.")
        return
    rows = [("NAME", "ARCHITECTURE", "QUANTISATION", "CONTEXT", "SIZE", "")]
    rows += [
        (
            entry.id,
            entry.architecture or "-",
            entry.quantisation or "-",
            str(entry.context or "-"),
            f"{entry.size / 1e6:,.0f} MB",
            f"broken: {entry.broken}" if entry.broken else "",
        )
        for entry in entries
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def explain(said: argparse.Namespace, settings: Settings) -> None:
    from dragoman import explain as explaining

    source = explaining.open_source(said.model, settings)
    if said.json:
        print(json.dumps(explaining.facts(source), ensure_ascii=False, indent=2))
    else:
        print(explaining.words(source, said.source))


def formats(said: argparse.Namespace, settings: Settings) -> None:
    from dragoman.explain import table

    print(table())
