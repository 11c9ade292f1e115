"""`dragoman explain`: show which output formats a model uses, and the evidence."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import COMMON, add_flags, add_usage, list_model_settings
from dragoman.cli.console.table import print_json
from dragoman.cli.console.text import print_text
from dragoman.config import Settings

if TYPE_CHECKING:
    from dragoman.models.catalog import ModelSource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS] MODEL|URL",
        examples=(
            "dragoman explain smollm2-135m",
            "dragoman explain ./chat_template.jinja --source",
            "dragoman explain ./tokenizer_config.json --json",
            "dragoman explain http://127.0.0.1:8080",
        ),
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="name of a model, a .gguf, .jinja or tokenizer_config.json file, or the URL of a "
        "model server",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--source", action="store_true", help="also print the template")
    add_flags(parser, {*COMMON, *list_model_settings()})


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.explain.report import build_report, format_report, open_source

    upstream = find_upstream(arguments.model, settings)
    if upstream is not None:
        explain_upstream(upstream, arguments, settings)
        return
    source = open_source(arguments.model, settings)
    if arguments.json:
        print_json(build_report(source))
    else:
        print_text(format_report(source, arguments.source))


def find_upstream(name: str, settings: Settings) -> ModelSource | None:
    """Return the model of a URL, of `--upstream` or of an entry with `upstream`, if it is one."""
    from dragoman.models.mapping import URL
    from dragoman.runtime import open_catalog

    if URL.match(name):
        if settings.upstream:
            raise CommandFailed("Name the server once: as a URL, or with --upstream.")
        return open_catalog(replace(settings, upstream=name), "").added[0]
    if settings.upstream:
        return open_catalog(settings, name).added[0]
    source = open_catalog(settings).find(name)
    return source if source is not None and source.kind == "remote" else None


def explain_upstream(
    source: ModelSource, arguments: argparse.Namespace, settings: Settings
) -> None:
    from dragoman.cli.output_format.explain_upstream import (
        describe_report,
        format_upstream_report,
        inspect_upstream,
    )

    report = inspect_upstream(source, settings)
    if arguments.json:
        print_json(describe_report(report))
    else:
        print_text(format_upstream_report(report, arguments.source))
    if report.error is not None:
        raise CommandFailed("This server cannot be used as it is; see `cannot serve`.")
