"""`dragoman ps`: list the models that the running server has loaded."""

from __future__ import annotations

import argparse
import time

import msgspec

from dragoman.cli.client.client import ServedModel
from dragoman.cli.client.connect import connect
from dragoman.cli.console.flags import CLIENT, add_flags, add_usage
from dragoman.cli.console.table import format_duration, format_size, print_json, print_table
from dragoman.config import Settings

HEADINGS = ("NAME", "STATUS", "MEMORY", "CONTEXT", "SLOTS BUSY", "WAITING", "UNTIL", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS]",
        examples=("dragoman ps", "dragoman ps --url http://gpu-box:8000 --json"),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser, CLIENT)


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    client = connect(settings)
    models = [model for model in client.list_models() if model.status in ("ready", "loading")]
    if arguments.json:
        print_json([msgspec.to_builtins(model) for model in models])
    elif models:
        print_table(HEADINGS, map(make_row, models))
    else:
        print(f"The server at {client.address} has no model loaded.")


def make_row(model: ServedModel) -> tuple[str, ...]:
    busy = "-" if model.slots_busy is None else str(model.slots_busy)
    size = model.memory or model.size
    return (
        model.id,
        model.status,
        format_size(size) if size else "-",
        str(model.context_length or "-"),
        f"{busy} of {model.slots}" if model.slots else busy,
        str(model.requests_waiting or 0),
        describe_expiry(model),
        describe_upstream(model),
    )


def describe_upstream(model: ServedModel) -> str:
    """Say which other server runs a model, and through which API."""
    upstream = model.upstream
    if upstream is None:
        return ""
    return f"on {upstream.server} {upstream.version}".rstrip() + f", {upstream.api} API"


def describe_expiry(model: ServedModel) -> str:
    """Say until when a model stays loaded."""
    if model.expires_at is not None:
        return f"{format_duration(max(0.0, model.expires_at - time.time()))} from now"
    return "in use" if model.slots_busy else "forever"
