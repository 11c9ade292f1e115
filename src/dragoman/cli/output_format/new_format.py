"""`dragoman new-format`: make an output format from one example answer."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import add_flags, add_usage
from dragoman.cli.console.text import print_text
from dragoman.cli.console.text_file import read_text_file
from dragoman.config import Settings

if TYPE_CHECKING:
    from dragoman.new_format.readers import Declarations, Reading

MAX_ANSWER = 1 << 16  # characters
NOT_FOUND = (
    "no call found in the answer. A call needs a name, and arguments in JSON, in tags or in Python "
    "syntax, between markers. If the answer has calls, name their tools with --tools."
)
NEXT_STEPS = """
Next: check the markers in {format_file} and name the models there,
run `pytest {test_file}`, and add {name} to docs/formats.md with `make format`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS] NAME [FILE]",
        examples=(
            "dragoman new-format my_model answer.txt",
            "dragoman new-format my_model answer.txt --tools tools.json --into ~/dragoman",
        ),
    )
    parser.add_argument("name", metavar="NAME", help="name of the new format, such as my_model_v2")
    parser.add_argument(
        "answer",
        metavar="FILE",
        nargs="?",
        default="-",
        help="an answer with at least one call, as the model writes it (default: standard input)",
    )
    parser.add_argument("--tools", metavar="FILE", help="JSON list of the tools that it may call")
    parser.add_argument(
        "--models", dest="model_names", metavar="TEXT", help="models that use the format"
    )
    parser.add_argument(
        "--into", metavar="DIR", help="working tree to write to (default: print the format)"
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="make a new format even if another one reads the answer",
    )
    add_flags(parser, ("log_level",))


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.new_format.files import InvalidName, check_name
    from dragoman.new_format.readers import find_readers, strip_end_of_turn

    try:
        check_name(arguments.name)
    except InvalidName as error:
        raise CommandFailed(str(error)) from None
    answer = strip_end_of_turn(_read_text(arguments.answer))
    if not answer.strip():
        raise CommandFailed("the answer is empty.")
    declared = None if arguments.tools is None else _read_tools(arguments.tools)
    readings = find_readers(answer, declared)
    if readings and not arguments.anyway:
        _print_readings(readings)
    else:
        _make_format(arguments, answer, declared)


def _make_format(arguments: argparse.Namespace, answer: str, declared: Declarations | None) -> None:
    from dragoman.new_format.files import FORMATS, make_files, write_files
    from dragoman.new_format.infer import describe_format, infer_format

    inferred = infer_format(arguments.name, answer, declared)
    if inferred is None:
        raise CommandFailed(NOT_FOUND)
    models = arguments.model_names or arguments.name.replace("_", " ")
    inferred = describe_format(inferred, models)
    files = make_files(inferred, answer, declared)
    if arguments.into is None:
        print_text(files[FORMATS / f"{arguments.name}.py"])
        return
    tree = Path(arguments.into).expanduser()
    if not tree.is_dir():
        raise CommandFailed(f"--into: there is no directory {arguments.into}.")
    write_files(tree, files)
    print_text("No known format reads the answer. The new format reads:")
    _print_calls(inferred.reading)
    for path in files:
        print_text(f"wrote {tree / path}")
    format_file, _, test_file = files
    print_text(
        NEXT_STEPS.format(format_file=format_file, test_file=test_file, name=arguments.name).strip(
            "\n"
        )
    )


def _print_readings(readings: list[Reading]) -> None:
    """Say which format reads the answer, and what it reads."""
    best, *others = readings
    assert best.tools is not None  # noqa: S101
    flags = f"--format {best.tools.name}"
    if isinstance(best.reasoning, str):
        flags += f" --reasoning-format {best.reasoning}"
    print_text(f"{best.tools.name} already reads the answer:")
    _print_calls(best)
    names = [reading.tools.name for reading in others if reading.tools is not None]
    if names:
        print_text(f"So do: {', '.join(names)}.")
    print_text(f"If detection does not find it, serve the model with `{flags}`.")


def _print_calls(reading: Reading) -> None:
    for name, arguments in reading.calls:
        print_text(f"  {name} {arguments}")
    if reading.text.strip():
        print_text(f"  text: {json.dumps(reading.text.strip(), ensure_ascii=False)}")
    if reading.reasoning_text.strip():
        print_text(f"  reasoning: {json.dumps(reading.reasoning_text.strip(), ensure_ascii=False)}")


def _read_text(file: str) -> str:
    text = read_text_file(file)
    if len(text) > MAX_ANSWER:
        raise CommandFailed(f"the answer is longer than {MAX_ANSWER:,} characters.")
    return text


def _read_tools(file: str) -> Declarations:
    try:
        tools = json.loads(_read_text(file))
    except (ValueError, RecursionError):
        raise CommandFailed(f"--tools: {file} is not valid JSON.") from None
    declarations = tools.get("tools") if isinstance(tools, dict) else tools
    if not isinstance(declarations, list) or not all(map(_has_name, declarations)):
        raise CommandFailed(f"--tools: {file} must be a list of tools, each with a name.")
    return declarations


def _has_name(tool: object) -> bool:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
