"""Every block of commands in README and docs/ works as pasted; `support/doc_blocks` says how."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dragoman.cli.main import parse_arguments
from tests.support.doc_blocks.blocks import (
    IN_TERMINAL,
    PAGES,
    DocBlock,
    list_blocks_of,
    read_blocks,
)
from tests.support.doc_blocks.workspace import ADDRESS, UPSTREAM, Workspace
from tests.support.paths import ROOT

BLOCKS = {str(page.relative_to(ROOT)): read_blocks(page) for page in PAGES}
# languages whose blocks are commands, and those whose blocks are only shown
RUN, SHOWN = {"sh", "python"}, {"json", "yaml", "text", "lark", "nginx", "caddyfile", "ini"}
# files of settings by their names, and the flag of `dragoman config` that reads them
SETTINGS_FILES = {
    "dragoman.yaml": "--config",
    "models.yaml": "--models-file",
    "preset.yaml": "--sampling-preset",
}
TARGETS = sorted({block.target for page in BLOCKS for block in BLOCKS[page] if block.target})


def is_run(block: DocBlock) -> bool:
    return block.language in RUN and block.target is None and block.file is None


def is_settings_file(block: DocBlock) -> bool:
    return block.file is not None and Path(block.file).name in SETTINGS_FILES


def needs_server(block: DocBlock) -> bool:
    """Whether a block uses a server that a reader has started before."""
    uses_server = {"ps", "stop", "health"}
    commands = {words[0] for words in block.commands if words} if block.language == "sh" else set()
    has_address = ADDRESS in block.text or UPSTREAM in block.text
    return has_address or bool(commands & uses_server)


@pytest.mark.parametrize("page", BLOCKS)
def test_blocks_are_well_formed(page: str) -> None:
    for block in BLOCKS[page]:
        where = str(block)
        assert block.language in RUN | SHOWN, f"{where}: name a language of {sorted(RUN | SHOWN)}"
        if block.marker and block.language in RUN:
            address = block.served_address
            is_known = block.marker == IN_TERMINAL or address is not None
            assert block.file or block.target or is_known, f"{where}: {block.marker}"
            if address is not None:
                assert address.endswith(f":{block.port}"), f"{where}: not the port of the command"
        if block.language == "json" and "..." not in block.text:
            json.loads(block.text)
        elif block.language == "yaml":
            yaml.safe_load(block.text)
            is_ours = is_settings_file(block) or block.marker.startswith("read by ")
            assert is_ours, f"{where}: name the file of settings, or say which program reads it"
        elif block.language == "python":
            compile(block.text, where, "exec")
        elif block.language == "sh":
            check_shell(block)


def check_shell(block: DocBlock) -> None:
    """Check the syntax of the shell, and every command line of ours."""
    command = ["bash", "-n", "-c", block.text]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{block}: {result.stderr}"
    for words in block.commands:
        if words != ["--version"]:
            parse_arguments(words)


def test_targets_run_their_blocks() -> None:
    """Tests of a target have its blocks as their parameters, which the names of the tests show."""
    folders = {find_test_folder(target): target for target in TARGETS}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "norecursedirs=.*"]
    command += ["-p", "no:cacheprovider", *folders]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stdout
    run: dict[str, set[str]] = {target: set() for target in TARGETS}
    for name in result.stdout.splitlines():
        for folder, target in folders.items():
            if name.startswith(f"{folder}/"):
                run[target].update(re.findall(r"[\w./-]+\.md:\d+", name))
    assert run == {target: set(map(str, list_blocks_of(target))) for target in TARGETS}


def find_test_folder(target: str) -> str:
    """Return the folder whose tests a target of the Makefile runs, all of them."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None, f"there is no target {target}"
    [folder] = re.findall(
        r"\bpytest\b.* (tests/\w+)(?: \$\(if \$\(AGENT\).*)?$", recipe[1], re.MULTILINE
    )
    return str(folder)


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.parametrize(
    "page", [page for page in BLOCKS if any(is_run(b) or is_settings_file(b) for b in BLOCKS[page])]
)
def test_commands_work_as_pasted(page: str, default_model: Path, tmp_path: Path) -> None:
    blocks = BLOCKS[page]
    own_server = any(block.served_address == ADDRESS for block in blocks)
    with Workspace(tmp_path, default_model, blocks) as workspace:
        if not own_server and any(needs_server(block) for block in blocks if is_run(block)):
            workspace.serve(["serve"])
        for block in blocks:
            if block.file is not None:
                path = workspace.directory / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
                if is_settings_file(block):
                    command = f"dragoman config {SETTINGS_FILES[path.name]} {path}"
                    workspace.run(block._replace(language="sh", text=command))
            elif block.served_address is not None:
                workspace.start(block)
            elif is_run(block):
                workspace.run(block)
    shutil.rmtree(tmp_path)  # downloaded models are large
