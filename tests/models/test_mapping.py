"""The mapping file gives names and options to models; invalid entries do no harm."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from dragoman.models.mapping import ModelOptions, read_mapping
from tests.support.model_files import find_file, make_catalog, write_model_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def test_mapping_names_files(root: Path, tmp_path: Path) -> None:
    outside = write_model_file(tmp_path / "elsewhere" / "big.gguf")
    write_model_file(root / "in.gguf")
    yaml = f"""
    models:
      Fast: in.gguf
      far: ../elsewhere/big.gguf
      full: {outside}
      tuned:
        path: in.gguf
        context: 512
        lora: {{poet: ../elsewhere/poet.gguf}}
        chat_template: t.jinja
        format: hermes_json
        reasoning_format: think
        keep_alive: 30
        defaults: {{temperature: 0.3, top_k: 7}}
        pin: true
    """
    models = make_catalog(root, yaml, ModelOptions(slots=2, context=4096))
    assert find_file(models, "fast") == "in.gguf"
    assert find_file(models, "FAR:latest") == "big.gguf"
    far, full, tuned = models.find("far"), models.find("full"), models.find("tuned")
    assert far is not None
    assert full is not None
    assert tuned is not None
    assert far.key == full.key  # two names of one file with the same settings are one model
    assert (far.id, far.aliases) == ("far", ("full",))
    assert tuned.options == ModelOptions(
        context=512,
        slots=2,
        lora={"poet": str(root / "../elsewhere/poet.gguf")},
        chat_template=str(root / "t.jinja"),
        format="hermes_json",
        reasoning_format="think",
        keep_alive=30,
        sampling={"temperature": 0.3, "top_k": 7},
        pin=True,
    )
    assert far.options == ModelOptions(slots=2, context=4096)
    assert [source.id for source in models.list_sources()] == ["Fast", "far", "tuned"]
    assert find_file(models, "in") == "in.gguf"  # the file keeps its own name too


def test_mapping_wins_over_scanned_files(root: Path, tmp_path: Path) -> None:
    write_model_file(root / "name.gguf")
    write_model_file(tmp_path / "other.gguf")
    assert find_file(make_catalog(root, "name: ../other.gguf"), "name") == "other.gguf"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("3", "expected a path"),
        ("[a, b]", "expected a path"),
        ("null", "expected a path"),
        ("''", "path is missing"),
        ("'  '", "path is missing"),
        ("{context: 3}", "path is missing"),
        ("{path: 3}", "path is missing"),
        ("{path: m.gguf, contxt: 3}", "contxt"),
        ("{path: m.gguf, context: many}", "context"),
        ("{path: m.gguf, defaults: {temperature: hot}}", "temperature"),
        ("{path: m.gguf, lora: {x: ''}}", "path is missing"),
        ("{path: m.gguf, format: nonsense}", "'nonsense'"),
        ("{path: m.gguf, reasoning_format: nonsense}", "'nonsense'"),
        ('"a\\0b"', "path is missing"),
    ],
)
def test_invalid_mapping_entries_are_skipped(
    value: str, reason: str, root: Path, caplog: Any
) -> None:
    write_model_file(root / "m.gguf")
    with caplog.at_level(logging.WARNING):
        models = make_catalog(root, f"bad: {value}\ngood: m.gguf\n7: m.gguf\n")
    assert models.find("bad") is None
    assert find_file(models, "good") == "m.gguf"
    assert reason in caplog.text
    assert "`bad`" in caplog.text


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b"a: [", b"- list", b"text", b"!!python/object/apply:os.system [true]", b""],
)
def test_invalid_mapping_file_maps_nothing(content: bytes, root: Path) -> None:
    write_model_file(root / "m.gguf")
    (root / "models.yaml").write_bytes(content)
    models = make_catalog(root)
    assert [source.id for source in models.list_sources()] == ["m"]


def test_unreadable_mapping_file_maps_nothing(root: Path, caplog: Any) -> None:
    (root / "models.yaml").mkdir()
    assert read_mapping(root / "models.yaml") == {}
    assert "cannot read models.yaml" in caplog.text


def test_missing_mapped_file_is_broken(root: Path) -> None:
    source = make_catalog(root, "gone: gone.gguf").find("gone")
    assert source is not None
    assert source.broken == "The file cannot be opened."
