"""A name finds the right model and never a path."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dragoman.models.catalog import ModelCatalog, ModelSource, describe_gguf
from dragoman.models.mapping import ModelOptions
from tests.support.model_files import find_file, make_catalog, write_model_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def test_model_is_found_by_every_name(root: Path) -> None:
    write_model_file(root / "Qwen2.5-0.5B-Instruct.Q4_K_M.gguf", general_architecture="qwen2")
    write_model_file(
        root / "team" / "writer" / "gemma-2b-it-q8_0.gguf", general_architecture="gemma"
    )
    write_model_file(root / "Titled.gguf", general_name="My Own Model", general_basename="Own")
    write_model_file(root / "cut-00001-of-00002.gguf", general_architecture="mistral")
    write_model_file(root / "cut-00002-of-00002.gguf", general_architecture="mistral")
    catalog = make_catalog(root)
    expected = {
        "Qwen2.5-0.5B-Instruct.Q4_K_M": "Qwen2.5-0.5B-Instruct.Q4_K_M.gguf",
        "  qwen2.5-0.5b-INSTRUCT.q4_k_m ": "Qwen2.5-0.5B-Instruct.Q4_K_M.gguf",
        "qwen2.5-0.5b-instruct": "Qwen2.5-0.5B-Instruct.Q4_K_M.gguf",
        "qwen2.5-0.5b-instruct:latest": "Qwen2.5-0.5B-Instruct.Q4_K_M.gguf",
        "qwen2.5-0.5b-instruct:q4_k_m": "Qwen2.5-0.5B-Instruct.Q4_K_M.gguf",
        "qwen2": "Qwen2.5-0.5B-Instruct.Q4_K_M.gguf",
        "team/writer/gemma-2b-it-q8_0": "gemma-2b-it-q8_0.gguf",
        "team/writer/gemma-2b-it": "gemma-2b-it-q8_0.gguf",
        "team/writer": "gemma-2b-it-q8_0.gguf",
        "writer": "gemma-2b-it-q8_0.gguf",
        "writer:7b": "gemma-2b-it-q8_0.gguf",
        "gemma-2b-it": "gemma-2b-it-q8_0.gguf",
        "my own model": "Titled.gguf",
        "my-own-model": "Titled.gguf",
        "own": "Titled.gguf",
        "cut": "cut-00001-of-00002.gguf",
        "nothing": None,
        "": None,
        "   ": None,
        ":": None,
        ":latest": None,
        "qwen2.5-0.5b": None,
        "x" * 10_000: None,
    }
    assert {name: find_file(catalog, name) for name in expected} == expected


def test_sources_have_their_architecture(root: Path) -> None:
    write_model_file(root / "a.gguf", general_architecture="qwen2")
    write_model_file(root / "b.gguf", general_architecture="gemma")
    architectures = {
        source.id: (source.architecture, source.kind)
        for source in make_catalog(root).list_sources()
    }
    assert architectures == {"a": ("qwen2", "gguf"), "b": ("gemma", "gguf")}


def test_ambiguous_weak_name_matches_nothing(root: Path) -> None:
    write_model_file(root / "m.Q4_0.gguf")
    write_model_file(root / "m.Q8_0.gguf")
    catalog = make_catalog(root)
    assert find_file(catalog, "m") is None
    assert find_file(catalog, "llama") is None
    assert find_file(catalog, "m:q8_0") == "m.Q8_0.gguf"
    write_model_file(root / "m.gguf")
    catalog.refresh()
    assert find_file(catalog, "m") == "m.gguf"  # an exact name wins


def test_two_files_with_one_name_are_both_reachable(root: Path) -> None:
    write_model_file(root / "a" / "same.gguf", size=2)
    write_model_file(root / "b" / "same.gguf", size=3)
    catalog = make_catalog(root)
    assert [source.id for source in catalog.list_sources()] == ["same", "b/same"]
    first, second = catalog.find("same"), catalog.find("b/same")
    assert first is not None
    assert second is not None
    assert (first.path.parent.name, second.path.parent.name) == ("a", "b")
    assert catalog.find("a/same") == first


def test_default_model_has_short_names(root: Path) -> None:
    write_model_file(root / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    catalog = make_catalog(root)
    for name in ("smollm2-135m", "SmolLM2", "smollm2-135m-instruct", "smollm2:135m"):
        source = catalog.find(name)
        assert source is not None
        assert source.id == "smollm2-135m"
    assert find_file(catalog, "SmolLM2-135M-Instruct.Q4_1") is not None


def test_other_files_are_not_listed(root: Path) -> None:
    write_model_file(root / "adapter.gguf", general_type="adapter")
    write_model_file(root / ".hidden.gguf")
    write_model_file(root / ".cache" / "x.gguf")
    write_model_file(root / "notes.txt", b"GGUF")
    write_model_file(root / "part-00002-of-00002.gguf")
    assert make_catalog(root).list_sources() == []


def test_broken_file_is_found_with_the_reason(root: Path) -> None:
    write_model_file(root / "bad.gguf", b"not a model")
    source = make_catalog(root).find("bad")
    assert source is not None
    assert source.broken == "The file is not a GGUF file."


def test_directory_of_safetensors_is_listed(root: Path) -> None:
    folder = root / "llama-hf"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096})
    )
    (folder / "model.safetensors").write_bytes(bytes(100))
    (root / "empty").mkdir()
    (root / "empty" / "config.json").write_text("{}")
    (source,) = make_catalog(root).list_sources()
    assert (source.id, source.kind, source.architecture) == (
        "llama-hf",
        "safetensors",
        "LlamaForCausalLM",
    )
    assert (source.context, source.size) == (4096, 100)
    (folder / "config.json").write_text("{")
    os.utime(folder, (1, 1))
    reloaded = make_catalog(root).find("llama-hf")
    assert reloaded is not None
    assert reloaded.broken is not None


def test_headers_are_read_once_for_each_version_of_a_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []

    def count_reads(path: Path) -> ModelSource:
        reads.append(path)
        return describe_gguf(path)

    monkeypatch.setattr("dragoman.models.catalog.describe_gguf", count_reads)
    file = write_model_file(root / "m.gguf")
    catalog = make_catalog(root)
    catalog.refresh()
    assert len(reads) == 1
    write_model_file(file, size=2, general_architecture="qwen2")
    catalog.refresh()
    assert len(reads) == 2
    source = catalog.find("m")
    assert source is not None
    assert source.architecture == "qwen2"
    file.unlink()
    catalog.refresh()
    assert catalog.find("m") is None


def test_created_is_when_the_file_changed(root: Path) -> None:
    file = write_model_file(root / "m.gguf")
    os.utime(file, (1_700_000_000.7, 1_700_000_000.7))
    catalog = make_catalog(root)
    for _ in range(3):
        catalog.refresh()
        assert catalog.list_sources()[0].created == 1_700_000_000


def test_missing_directory_is_an_empty_catalog(tmp_path: Path) -> None:
    catalog = ModelCatalog(tmp_path / "none", tmp_path / "none.yaml")
    catalog.refresh()
    assert catalog.list_sources() == []
    assert catalog.find("x") is None


def test_only_the_operator_may_name_a_path(root: Path, tmp_path: Path) -> None:
    outside = write_model_file(tmp_path / "outside.gguf")
    catalog = make_catalog(root)
    assert catalog.find(str(outside)) is None
    assert catalog.resolve(str(outside)) is None
    source = catalog.resolve(str(outside), paths=True)
    assert source is not None
    catalog.add(source, ["gpt-4", "served"])
    catalog.refresh()
    assert (
        find_file(catalog, "GPT-4")
        == find_file(catalog, "served")
        == find_file(catalog, "outside")
        == "outside.gguf"
    )
    assert catalog.list_sources()[0].aliases == ("gpt-4", "served")
    assert catalog.resolve("not-there", paths=True) is None
    assert catalog.resolve("a\0b", paths=True) is None


def test_served_model_gets_the_options_of_the_command_line(root: Path, tmp_path: Path) -> None:
    outside = write_model_file(tmp_path / "m.gguf")
    catalog = make_catalog(root, base=ModelOptions(threads=3))
    source = catalog.open_path(outside, ModelOptions(context=99))
    assert source.options == ModelOptions(context=99, threads=3)


STEPS = ["../", "..\\", "..%2f", "%2e%2e/", "..%5c", "....//", "..;/", "%c0%ae%c0%ae/", "./../"]
TARGETS = ["secret", "secret.gguf", "etc/passwd", "models.yaml", "outside/secret.gguf"]
WHOLE_NAMES = [
    "/etc/passwd",
    "//etc/passwd",
    "file:///etc/passwd",
    "C:\\windows\\win.ini",
    "\\\\host\\share\\x.gguf",
    "~/secret.gguf",
    "~root",
    "a\0b",
    "secret\0.gguf",
    "\0",
    "con",
    "/proc/self/environ",
    "/dev/zero",
    "${HOME}/x",
    "$(id)",
    "`id`",
    "m.gguf/../../secret",
    "m/../../outside/secret",
    "sha256:../../secret",
    ".",
    "..",
    "/",
]


def list_traversals(tmp_path: Path) -> list[str]:
    names = [step * depth + target for step in STEPS for depth in (1, 3, 8) for target in TARGETS]
    names += [quote(name, safe="") for name in names[:30]]
    names += [f"m:{name}" for name in names[:20]]
    absolute = str(tmp_path / "outside" / "secret.gguf")
    return names + WHOLE_NAMES + [absolute, absolute.upper(), absolute.replace("/", "\\")]


OPENED: list[str] | None = None


def record_open(event: str, arguments: tuple[Any, ...]) -> None:
    if OPENED is not None and event in ("open", "os.listdir", "os.scandir"):
        OPENED.append(str(arguments[0]))


@contextmanager
def watch_opens() -> Iterator[list[str]]:
    global OPENED
    if not getattr(sys, "_dragoman_watched", False):
        sys.addaudithook(record_open)
        sys._dragoman_watched = True  # type: ignore[attr-defined]
    OPENED = []
    try:
        yield OPENED
    finally:
        OPENED = None


def test_no_name_opens_anything_outside_the_root(root: Path, tmp_path: Path) -> None:
    write_model_file(tmp_path / "outside" / "secret.gguf")
    write_model_file(tmp_path / "secret.gguf")
    write_model_file(root / "m.gguf")
    names = list_traversals(tmp_path)
    assert len(set(names)) >= 200
    catalog = ModelCatalog(root)
    with watch_opens() as opened:
        catalog.refresh()
        for name in names:
            source = catalog.find(name)
            assert source is None or source.path == root / "m.gguf", name
            catalog.refresh()
    assert opened
    assert {path for path in opened if not Path(path).is_relative_to(root)} == set()
