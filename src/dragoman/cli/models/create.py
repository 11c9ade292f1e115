"""`dragoman create`: create a model from another one, with its own system prompt and parameters.

What differs is an entry of models.yaml. Files that a Modelfile names are copied into the models
directory.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import COMMON, add_flags, add_usage
from dragoman.cli.console.model_manager import open_manager
from dragoman.cli.console.text import print_text
from dragoman.cli.console.text_file import STANDARD_INPUT, read_text_file
from dragoman.config import Settings

if TYPE_CHECKING:
    from dragoman.models.management.modelfile import Modelfile
    from dragoman.models.management.recipe import Recipe
    from dragoman.models.management.service import ModelManager

DEFAULT_FILE = "Modelfile"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS] NAME",
        examples=(
            "dragoman create poet -f Modelfile",
            "dragoman create poet --from smollm2-135m --system 'Answer in rhymes.' "
            "--parameter temperature=0.9",
        ),
    )
    parser.add_argument("name", metavar="NAME", help="name of the new model")
    parser.add_argument(
        "-f",
        "--file",
        metavar="PATH",
        help="Modelfile, or - for standard input (default: ./Modelfile, without --from)",
    )
    parser.add_argument(
        "--from", dest="source", metavar="MODEL", help="model or GGUF file to start from"
    )
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument(
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="parameter such as temperature=0.2, under Ollama's names",
    )
    parser.add_argument(
        "--template", metavar="PATH", help="chat template, in Jinja or in Go's template language"
    )
    parser.add_argument(
        "--adapter", action="append", default=[], metavar="PATH", help="LoRA adapter (GGUF)"
    )
    add_flags(parser, COMMON)


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    modelfile = read_arguments(arguments)
    with open_manager(settings) as manager:
        recipe = make_recipe(arguments.name, modelfile, manager)
        for warning in manager.create(recipe):
            print_text(f"Warning: {warning}")
    print_text(f"{recipe.name} is created from {modelfile.source}.")


def read_arguments(arguments: argparse.Namespace) -> Modelfile:
    """Return the Modelfile with what the flags say instead."""
    from dragoman.models.management.modelfile import Modelfile, add_parameter, parse_modelfile

    file = arguments.file
    if file is None and not arguments.source and Path(DEFAULT_FILE).is_file():
        file = DEFAULT_FILE
    base = Path(file or "").parent
    modelfile = parse_modelfile(read_text_file(file)) if file else Modelfile()
    if file and file != STANDARD_INPUT:
        modelfile.adapters = [str(base / path) for path in modelfile.adapters]
        if (base / modelfile.source).is_file():
            modelfile.source = str(base / modelfile.source)
    modelfile.source = arguments.source or modelfile.source
    if not modelfile.source:
        raise CommandFailed("Name the model to start from with --from, or a Modelfile with --file.")
    modelfile.system = arguments.system or modelfile.system
    for pair in arguments.parameter:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CommandFailed(f"--parameter takes NAME=VALUE, got {pair!r}.")
        add_parameter(modelfile.parameters, name.strip(), value.strip())
    if arguments.template:
        modelfile.template = read_text_file(arguments.template)
    modelfile.adapters += arguments.adapter
    return modelfile


def make_recipe(name: str, modelfile: Modelfile, manager: ModelManager) -> Recipe:
    """Return the recipe; files are copied into the models directory first."""
    from dragoman.models.management.model_name import check_new_name
    from dragoman.models.management.recipe import Recipe

    checked = check_new_name(name, "NAME")
    files: dict[str, str] = {}
    if manager.find(modelfile.source) is None and Path(modelfile.source).is_file():
        path = Path(modelfile.source)
        files = {path.name: manager.blobs.add_file(path)}
    return Recipe(
        name=checked,
        source=None if files else modelfile.source,
        files=files,
        adapters={path: manager.blobs.add_file(Path(path)) for path in modelfile.adapters},
        template=modelfile.template,
        system=modelfile.system,
        parameters=modelfile.parameters,
        messages=tuple(modelfile.messages),
        license=tuple(modelfile.license),
    )
