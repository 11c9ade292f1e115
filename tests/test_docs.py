"""The documentation matches the code."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from dragoman import config
from dragoman.formats import get_reasoning_formats, get_tool_formats
from tests.support.paths import ROOT
from tests.support.serving import make_scripted_app

PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
PAGES += sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md"))


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(load_generator().PAGES))
def test_generated_pages_are_up_to_date(name: str) -> None:
    """The row of a new format may be missing: adding a format takes only its file and its cases."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines()
    generated = load_generator().PAGES[name]().splitlines()
    may_be_missing = "| `" if name == "formats.md" else "\0"
    expected = [line for line in generated if line in page or not line.startswith(may_be_missing)]
    assert page == expected, "run `make format`"


def test_paths_in_the_readme_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    routes = {route.path for route in make_scripted_app().router.routes}
    paths = set(re.findall(r"127\.0\.0\.1:8000(/v1/[a-z/]+)", readme))
    assert paths
    assert paths <= routes


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_the_docs_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in re.findall(r"`([\w/]+/[\w]+\.(?:py|md|txt|toml|yaml))`", text):
        places = [ROOT / name, ROOT / "src" / "dragoman" / name]
        assert any(place.exists() for place in places), f"{page} names {name}"
    for link in re.findall(r"\]\(([\w./]+)\)", text):
        assert (ROOT / page).parent.joinpath(link).exists(), f"{page} links {link}"


def list_tasks() -> dict[str, tuple[str, str]]:
    """Return files and notes of each task in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!I want|---)([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    return {task: (files, notes) for task, files, notes in rows}


def find_named_files(name: str) -> list[Path]:
    """Return the files that a name stands for: `<api>` is any name, `decode.py` is in any package.

    A name with a directory is below the root of the repository or of the package.
    """
    pattern = re.sub(r"<\w+>", "*", name).rstrip("/")
    roots = [ROOT, ROOT / "src" / "dragoman"]
    found = [path for root in roots for path in root.glob(pattern)]
    return found or ([] if "/" in pattern else [*roots[1].rglob(pattern)])


@pytest.mark.parametrize("task", list_tasks())
def test_tasks_of_contributors_name_few_files_that_exist(task: str) -> None:
    files, notes = list_tasks()[task]
    names = re.findall(r"`([^`\s]+(?:\.\w+|/))`", files) + re.findall(r"\bdocs/\w+\.md\b", files)
    assert 0 < len(set(names)) <= 5, f"{task}: {names}"
    for name in [*names, *re.findall(r"`([\w/<>]+\.(?:py|md))`", notes)]:
        assert find_named_files(name), f"{task}: there is no {name}"


@cache
def read_code() -> str:
    places = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), ROOT / "Makefile"]
    return "\n".join(path.read_text(encoding="utf-8") for path in places)


@pytest.mark.parametrize("task", list_tasks())
def test_tasks_of_contributors_name_code_that_exists(task: str) -> None:
    """Functions, classes, constants and fields in the notes; a name may have arguments."""
    notes = list_tasks()[task][1]
    for name in re.findall(r"`(?:dragoman\.)?([A-Za-z_][\w.]*)(?:\([\w, ]*\))?`", notes):
        for part in name.split("."):
            if not name.endswith((".py", ".md")):
                assert re.search(rf"\b{part}\b", read_code()), f"{task}: there is no {name}"


@pytest.mark.parametrize("target", ["serve", "test", "check", "format", "help"])
def test_make_targets_named_in_the_docs_exist(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_every_setting_is_in_the_help() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "dragoman", "config", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    text = " ".join(process.stdout.split())
    for field in config.list_settings().values():
        if field.setting.is_file_only:
            continue
        assert re.search(rf"{config.name_flag(field)}[, ]", text), field.name
        assert field.setting.help in text, field.name
        if field.default_text:
            assert f"(default: {field.default_text})" in text, field.name


def test_readme_counts_the_formats() -> None:
    counts = (
        f"{len(get_tool_formats())} tool formats, {len(get_reasoning_formats())} reasoning formats"
    )
    assert counts in (ROOT / "README.md").read_text(encoding="utf-8")
