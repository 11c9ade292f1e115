"""What the command line imports: little, so that it answers at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman import config
from dragoman.cli.main import COMMANDS, build_parser, main, parse_arguments

PROGRAM = """
import atexit, json, sys
atexit.register(lambda: sys.stderr.write("\\n" + json.dumps(sorted(sys.modules))))
from dragoman.cli.main import main
main()
"""
# what reads settings; asyncio is a third of the start of Python
SETTINGS = {"dragoman.config", "dragoman.options", "msgspec", "yaml", "asyncio"}
SERVER = {"uvicorn", "uvloop", "websockets", "sqlalchemy", "dragoman.http"}
ENGINES = {"xllamacpp", "vllm", "llguidance", "transformers", "torch"}
OTHERS = {"huggingface_hub", "prompt_toolkit", "PIL"}
MODULES = {f"dragoman.cli.{command.module}" for command in COMMANDS}


def list_imports(home: Path, *arguments: str) -> set[str]:
    """Run a command in an empty home and return the modules that it imported."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={"HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(result.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    ("command", "excluded"),
    [
        ("--help", SETTINGS | SERVER | ENGINES | OTHERS | MODULES),
        ("--version", SETTINGS | SERVER | ENGINES | OTHERS | MODULES),
        ("help", SETTINGS | SERVER | ENGINES | OTHERS | MODULES),
        ("serve --help", SERVER | ENGINES | OTHERS),
        ("formats", SERVER | ENGINES | OTHERS | {"dragoman.runtime"}),
        ("list", SERVER | ENGINES | OTHERS | MODULES - {"dragoman.cli.models.list"}),
        ("config", SERVER | ENGINES | OTHERS),
    ],
)
def test_a_command_imports_only_what_it_needs(
    command: str, excluded: set[str], tmp_path: Path
) -> None:
    assert not excluded & list_imports(tmp_path, *command.split())


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_the_program_alone_prints_its_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(arguments)
    assert caught.value.code == 0
    assert capsys.readouterr().out == build_parser().format_help()


def test_help_names_every_command_and_the_prefix_of_variables() -> None:
    text = build_parser().format_help()
    assert f"{config.PREFIX}<NAME>" in text
    for command in COMMANDS:
        assert command.name in text
        assert command.summary.split()[0] in text


def test_ctrl_c_during_the_start_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dragoman.cli.main.parse_arguments", interrupt)
    with pytest.raises(SystemExit) as caught:
        main(["serve"])
    assert caught.value.code == 130
    assert capsys.readouterr() == ("", "")
