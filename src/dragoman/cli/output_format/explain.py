"""`dragoman explain`: show which output formats a model uses, and the evidence."""

from __future__ import annotations

import argparse

from dragoman.cli.console.flags import COMMON, add_command, add_flags
from dragoman.cli.console.table import print_json
from dragoman.cli.console.text import print_text
from dragoman.config import Settings


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = add_command(
        commands,
        "explain",
        "show how a model writes tool calls and reasoning",
        examples=(
            "dragoman explain smollm2-135m",
            "dragoman explain ./chat_template.jinja --source",
            "dragoman explain ./tokenizer_config.json --json",
        ),
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="name of a model, or a .gguf, .jinja or tokenizer_config.json file",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--source", action="store_true", help="also print the template")
    add_flags(parser, (*COMMON, "chat_template"))
    return parser


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.explain import build_report, format_report, open_source

    source = open_source(arguments.model, settings)
    if arguments.json:
        print_json(build_report(source))
    else:
        print_text(format_report(source, arguments.source))
