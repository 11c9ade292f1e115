"""`dragoman list`: list the installed models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dragoman.cli.console.flags import COMMON, add_flags, add_usage, list_model_settings
from dragoman.cli.console.table import format_size, print_json, print_table
from dragoman.config import Settings
from dragoman.options import mask_password
from dragoman.types import Json

if TYPE_CHECKING:
    from dragoman.models.catalog import ModelSource
    from dragoman.models.model import ModelInfo

HEADINGS = ("NAME", "ARCHITECTURE", "QUANTIZATION", "CONTEXT", "SIZE", "MEMORY", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS]",
        examples=("dragoman list", "dragoman list --json --models-dir /srv/models"),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser, {*COMMON, "memory", *list_model_settings()})


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.models.memory import MemoryPlanner, make_info
    from dragoman.runtime import open_catalog

    planner = MemoryPlanner(settings.memory)
    sources = open_catalog(settings).list_sources()
    planned = [(source, make_info(source, planner)) for source in sources]
    if arguments.json:
        print_json([describe_source(source) | describe_plan(info) for source, info in planned])
    elif sources:
        print_table(HEADINGS, [make_row(source, info) for source, info in planned])
    else:
        print("No models are installed. `dragoman pull smollm2-135m` downloads the default model.")


def make_row(source: ModelSource, info: ModelInfo) -> tuple[str, ...]:
    names = ", ".join(source.aliases)
    context = str(info.context or "-")
    if info.trained_context is not None and info.context != info.trained_context:
        context += f" of {info.trained_context}"  # served, and trained for
    return (
        source.id,
        source.architecture or "-",
        source.quantization or "-",
        context,
        format_size(source.size) if source.kind != "remote" else "-",
        "-" if info.memory is None else format_size(info.memory),
        describe_state(source, names),
    )


def describe_state(source: ModelSource, names: str) -> str:
    """Say what else is known: why a model is broken, where it runs, its other names."""
    if source.broken:
        return f"broken: {source.broken}"
    notes = [f"at {mask_password(source.options.upstream)}"] if source.options.upstream else []
    return ", ".join([*notes, *([f"also {names}"] if names else [])])


def describe_plan(info: ModelInfo) -> dict[str, Json]:
    """Return the context that is served and the memory that is needed, when it is loaded here."""
    return {
        "context": info.context,
        "trained_context": info.trained_context,
        "memory": info.memory,
    }


def describe_source(source: ModelSource) -> dict[str, Json]:
    """Return what is known about a model without loading it."""
    return {
        "name": source.id,
        "aliases": list(source.aliases),
        "path": None if source.kind == "remote" else str(source.path),
        "upstream": source.options.upstream and mask_password(source.options.upstream),
        "format": source.kind,
        "architecture": source.architecture,
        "parameters": source.parameters,
        "quantization": source.quantization,
        "context": source.context,
        "size": source.size,
        "modified": source.created,
        "error": source.broken,
    }
