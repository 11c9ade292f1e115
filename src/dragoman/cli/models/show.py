"""`dragoman show`: describe a model without loading it.

With `--url`, a running server is asked, which says less than the files do. Otherwise the model is
described from its files (`models.description`), with the context and memory that it would have
here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from dragoman.cli.client.client import ServedModel
from dragoman.cli.client.connect import connect
from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import COMMON, REMOTE, add_flags, add_usage, list_model_settings
from dragoman.cli.console.table import format_size, print_fields, print_json
from dragoman.cli.console.text import print_text
from dragoman.cli.models.list import describe_source
from dragoman.cli.ps import describe_upstream
from dragoman.config import Settings
from dragoman.options import mask_password
from dragoman.types import Json

if TYPE_CHECKING:
    from dragoman.models.description import ModelDescription

PARTS = {
    "template": "the chat template",
    "license": "the license",
    "parameters": "the sampling defaults",
    "system": "the system message",
    "metadata": "the metadata of the file",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS] MODEL",
        examples=(
            "dragoman show smollm2-135m",
            "dragoman show ./model.gguf --template",
            "dragoman show qwen3 --json",
            "dragoman show qwen3 --url http://gpu-box:8000",
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="name or file of a model")
    parser.add_argument("--json", action="store_true", help="print JSON")
    only = parser.add_mutually_exclusive_group()
    for part, text in PARTS.items():
        only.add_argument(
            f"--{part}", dest="part", action="store_const", const=part, help=f"print only {text}"
        )
    add_flags(parser, {*COMMON, *REMOTE, "memory", *list_model_settings()})


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.models.description import describe_model
    from dragoman.models.memory import MemoryPlanner
    from dragoman.runtime import open_catalog

    if settings.url:
        show_served(arguments, settings)
        return
    source = open_catalog(settings, arguments.model).added[0]
    description = describe_model(source, MemoryPlanner(settings.memory), settings.upstream_key)
    if arguments.part is not None:
        show_part(description, arguments.part, is_json=arguments.json)
    elif arguments.json:
        print_json(to_json(description))
    else:
        print_fields(list_fields(description))
    if description.error is not None:
        raise CommandFailed(f"{source.id} cannot be loaded: {description.error}")


def show_served(arguments: argparse.Namespace, settings: Settings) -> None:
    """Show what a running server says about its model."""
    if arguments.part is not None:
        raise CommandFailed(f"A server does not report {PARTS[arguments.part]}: leave out --url.")
    model = connect(settings).get_model(arguments.model)
    if arguments.json:
        print_json(msgspec.to_builtins(model))
    else:
        print_fields(list_served_fields(model))


def show_part(description: ModelDescription, part: str, *, is_json: bool) -> None:
    value = get_part(description, part)
    if not value:
        raise CommandFailed(f"Nothing is known about {PARTS[part]} of {description.source.id}.")
    if is_json:
        print_json(value)
    elif isinstance(value, dict):
        print_fields((name, str(item)) for name, item in value.items())
    else:
        print_text(value)


def get_part(description: ModelDescription, part: str) -> Json:
    parts: dict[str, Json] = {
        "template": description.template,
        "license": description.license,
        "parameters": description.sampling,
        "system": description.system,
        "metadata": description.metadata,
    }
    return parts[part]


def list_fields(description: ModelDescription) -> Iterator[tuple[str, str]]:
    source = description.source
    rows: dict[str, object] = {
        "model": source.id,
        "also named": ", ".join(source.aliases),
        "file": None if source.kind == "remote" else source.path,
        **list_upstream_fields(description),
        "error": description.error,
        "architecture": source.architecture,
        "parameters": source.parameters,
        "quantization": source.quantization,
        "size": format_size(source.size) if source.size else None,
        "context": describe_context(description),
        "memory": description.plan.memory.describe() if description.plan else None,
        "layers": description.layers,
        "embedding length": description.embedding_length,
        "vocabulary": description.vocabulary and f"{description.vocabulary:,} tokens",
        "capabilities": ", ".join(description.capabilities),
        "reads": ", ".join(description.modalities),
        "adapters": describe_adapters(description),
        "tool calls": description.tool_format,
        "reasoning": description.reasoning_format,
        "template": describe_template(description),
        "sampling": describe_sampling(description),
        "system": description.system,
        "stop": ", ".join(map(repr, description.stop)),
        "license": description.license,
    }
    yield from ((name, str(value)) for name, value in rows.items() if value)


def list_upstream_fields(description: ModelDescription) -> dict[str, object]:
    """Return what is known about the server that runs a model, if it is another one."""
    found, url = description.upstream, description.source.options.upstream
    if url is None:
        return {}
    address: dict[str, object] = {"upstream": mask_password(url)}
    if found is None:
        return address
    info = found.info
    return {
        "upstream": f"{info.name} {info.version}".rstrip() + f" at {mask_password(url)}",
        "model there": info.model,
        "API": f"{found.api}{f' ({found.reason})' if found.reason else ''}",
    }


def describe_adapters(description: ModelDescription) -> str:
    """Name the LoRA adapters of a model, and those that requests get which name none."""
    options, found = description.source.options, description.upstream
    names = options.lora if found is None else found.info.adapters
    return ", ".join(f"{n} (default)" if n in options.default_lora else n for n in names)


def describe_context(description: ModelDescription) -> str | None:
    """Say for how many tokens the model was trained, and with how many it is served here."""
    plan, trained = description.plan, description.source.context
    if plan is None:
        return None if trained is None else f"trained for {trained} tokens"
    slots = "slot" if plan.slots == 1 else "slots"
    served = f"served with {plan.context} in {plan.slots} {slots}"
    return f"trained for {plan.trained_context} tokens, {served}"


def describe_template(description: ModelDescription) -> str:
    if description.template is None:
        return "none"
    length = len(description.template)
    return f"{length:,} characters; --template prints it, `dragoman explain` explains it"


def describe_sampling(description: ModelDescription) -> str:
    pairs = ", ".join(f"{name} {value}" for name, value in description.sampling.items())
    return f"{pairs} (from {description.sampling_source})" if pairs else ""


def list_served_fields(model: ServedModel) -> Iterator[tuple[str, str]]:
    rows: dict[str, object] = {
        "model": model.id,
        "also named": ", ".join(model.aliases),
        "status": model.status,
        "error": model.error,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "quantization": model.quantization,
        "size": model.size and format_size(model.size),
        "memory": model.memory and format_size(model.memory),
        "context": model.context_length and f"{model.context_length} tokens",
        "capabilities": ", ".join(model.capabilities),
        "reads": ", ".join(model.modalities),
        "runs": describe_upstream(model),
    }
    yield from ((name, str(value)) for name, value in rows.items() if value)


def to_json(description: ModelDescription) -> dict[str, Json]:
    plan = description.plan
    return describe_source(description.source) | {
        "error": description.error,
        "context": {
            "trained": plan.trained_context if plan else description.source.context,
            "served": plan.context if plan else None,
        },
        "slots": plan.slots if plan else None,
        "memory": msgspec.to_builtins(plan.memory) | {"total": plan.memory.total} if plan else None,
        "layers": description.layers,
        "embedding_length": description.embedding_length,
        "vocabulary": description.vocabulary,
        "capabilities": list(description.capabilities),
        "modalities": list(description.modalities),
        "lora": dict(description.source.options.lora),
        "default_lora": list(description.source.options.default_lora),
        "tool_format": description.tool_format,
        "reasoning_format": description.reasoning_format,
        "template": description.template,
        "sampling": description.sampling,
        "system": description.system,
        "stop": list(description.stop),
        "license": description.license,
        "metadata": description.metadata,
    }
