"""What the documents say is what the code does."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dragoman.cli.flags import FLAGS
from dragoman.config import Settings
from tests.support.serving import make_scripted_app

ROOT = Path(__file__).parent.parent


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(generator().PAGES))
def test_generated_pages_are_up_to_date(name: str) -> None:
    """A row for a format that was just added may be missing: a format is a file and its cases."""
    written = (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines()
    made = generator().PAGES[name]().splitlines()
    kept = [line for line in made if line in written or not line.startswith("| `")]
    assert written == kept, "run `make format`"


def test_the_readme_names_only_paths_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    paths = {route.path for route in make_scripted_app().router.routes}
    named = set(re.findall(r"127\.0\.0\.1:8000(/v1/[a-z/]+)", readme))
    assert named
    assert named <= paths


def test_files_named_in_the_documents_exist() -> None:
    for page in ("README.md", "docs/flow.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w/]+\.py)`", text):
            found = [ROOT / name, ROOT / "src" / "dragoman" / name]
            assert any(path.exists() for path in found), f"{page} names {name}"
        for link in re.findall(r"\]\(([\w./]+)\)", text):
            assert (ROOT / page).parent.joinpath(link).exists(), f"{page} links {link}"


def test_every_setting_has_a_flag_or_a_reason_not_to() -> None:
    flags = {flag.setting for flag in FLAGS}
    timing = {"header_limit", "receive_timeout", "patience", "ping", "stall"}
    assert flags | timing == set(Settings.__struct_fields__)


def test_every_flag_is_in_the_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for flag in FLAGS:
        assert flag.name in done.stdout
