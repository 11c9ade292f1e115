"""The command line: parses the arguments and runs one command."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from dragoman import config
from dragoman._version import __version__
from dragoman.cli import (
    bench,
    cp,
    create,
    engine,
    health,
    keys,
    ps,
    pull,
    rm,
    serve,
    show,
    stop,
)
from dragoman.cli import config as config_command
from dragoman.cli import list as list_command
from dragoman.cli import run as run_command
from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.text import escape_controls
from dragoman.cli.output_format import explain, formats, new_format
from dragoman.cli.serving.log_handler import configure_logging
from dragoman.errors import DragomanError
from dragoman.options import suggest

log = logging.getLogger("dragoman")
COMMANDS = (
    *(serve, run_command, pull, list_command, show, ps, stop, rm, cp, create, bench),
    *(engine, explain, formats, new_format, config_command, keys, health),
)

MODEL = "MODEL"
# Flags of llama-server, vLLM and SGLang, and what they are called here.
FOREIGN_FLAGS = {
    **dict.fromkeys(("-m", "--model", "--model-path"), MODEL),
    **dict.fromkeys(("--n-ctx", "--num-ctx", "--context-length", "--max-model-len"), "--context"),
    **dict.fromkeys(("--max-num-seqs", "--max-running-requests"), "--slots"),
    **dict.fromkeys(("-a", "--alias", "--served-model-name"), "--served-name"),
    **dict.fromkeys(("-v", "--verbose"), "--log-level debug"),
    **dict.fromkeys(("--ssl-certfile", "--ssl-cert-file"), "--tls-cert"),
    **dict.fromkeys(("--ssl-keyfile", "--ssl-key-file"), "--tls-key"),
    **dict.fromkeys(("--lora-modules", "--lora-paths"), "--lora NAME=PATH"),
    "--chat-template-file": "--chat-template",
    "--tool-call-parser": "--format",
    "--reasoning-parser": "--reasoning-format",
    "--tensor-parallel-size": "--engine-arg tensor_parallel_size=COUNT",
    "--gpu-memory-utilization": "--engine-arg gpu_memory_utilization=SHARE",
}


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose flags cannot be abbreviated."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"allow_abbrev": False})

    def _get_option_tuples(
        self, option_string: str
    ) -> list[tuple[argparse.Action, str, str | None]]:
        """Leave out flags that begin with the argument: `allow_abbrev` is about two dashes only."""
        matches = super()._get_option_tuples(option_string)
        return [match for match in matches if option_string.startswith(match[1])]

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.dest == "command" and value not in (action.choices or ()):
            hint = suggest(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(None, f"there is no command {value!r}.{hint}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"dragoman: {message}{end} See `{self.prog} --help`.\n")


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="dragoman",
        description="An OpenAI-, Anthropic- and Ollama-compatible server for open models.",
        epilog=f"Every flag can also be set in the environment as {config.PREFIX}<NAME>, and in "
        "dragoman.yaml. `dragoman config` prints the settings in effect.",
    )
    parser.add_argument("--version", action="version", version=f"dragoman {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = command.add_parser(commands)
        subparser.set_defaults(run=command.run, parser=subparser)
    return parser


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; a flag that does not exist is an error that names a similar one."""
    words = sys.argv[1:] if arguments is None else [*arguments]
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    parsed, unknown = build_parser().parse_known_args(words)
    for argument in unknown:
        flag = argument.partition("=")[0]
        if flag.startswith("-"):
            hint = suggest_flag(flag, parsed.parser._option_string_actions)
            parsed.parser.error(f"there is no flag {flag}.{hint}")
    if hasattr(parsed, "words"):  # argparse ends a list of arguments at the first flag
        parsed.words += unknown
    elif unknown:
        parsed.parser.error(f"unexpected argument {unknown[0]!r}.")
    return parsed


def suggest_flag(flag: str, known: Collection[str]) -> str:
    """Name the flag that is meant: that of another server, or a misspelt one."""
    ours = FOREIGN_FLAGS.get(flag)
    if ours == MODEL:
        return " Name the model without a flag."
    if ours is not None and ours.split()[0] in known:
        return f" Use `{ours}`."
    return suggest(flag, [name for name in known if len(name) > 2])


def main(arguments: Sequence[str] | None = None) -> None:
    replace_closed_streams()
    parsed = parse_arguments(arguments)
    flags = {name: getattr(parsed, name, None) for name in config.list_settings()}
    try:
        configuration = config.load_configuration(flags, search=True)
    except config.SettingsError as error:
        sys.exit(f"dragoman: {error}")
    settings, parsed.configuration = configuration.settings, configuration
    configure_logging(settings)
    for warning in configuration.warnings:
        log.warning("%s", warning)
    from dragoman.runtime import StartupError

    if isinstance(sys.stdout, io.TextIOWrapper):  # some locales cannot encode every character
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        parsed.run(parsed, settings)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        discard_output()
        sys.exit(1)
    except (CommandFailed, DragomanError, StartupError) as error:
        sys.exit(f"dragoman: {escape_controls(str(error))}")
    except OSError as error:
        discard_output()
        log.debug("a system call failed", exc_info=error)
        where = f": {error.filename}" if error.filename else ""
        sys.exit(f"dragoman: {error.strerror or error}{where}")
    except KeyboardInterrupt:
        sys.exit(130)


def replace_closed_streams() -> None:
    """Open standard streams that the caller closed, as `<&-` and `>&-` do."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            flags = os.O_RDONLY if mode == "r" else os.O_WRONLY
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))


def discard_output() -> None:
    """Drop output that cannot be written, or Python tries again at exit and complains."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
