"""A YAML file is read with the lines of its keys; what cannot be read is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.options.yaml_file import YamlFileError, read_yaml_file

TEXT = """\
server:
  port: 1

models:
  a: &a {path: a.gguf, context: 1}
  b: {<<: *a,
    context: 2}
  c: *a
7: seven
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f.yaml"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (["server"], ":1"),
        (["server", "port"], ":2"),
        (["models", "b", "context"], ":7"),
        (["models", "b", "path"], ":6"),  # merged: the entry itself
        (["models", "c", "path"], ":5"),
        (["7"], ":9"),
        (["nothing"], ""),
        (["server", "nothing"], ":1"),
    ],
)
def test_a_key_is_located_by_file_and_line(file: Path, keys: list[str], line: str) -> None:
    assert read_yaml_file(file).locate(*keys) == f"{file}{line}"


def test_merged_keys_can_be_set_again(file: Path) -> None:
    models = read_yaml_file(file).content["models"]
    assert isinstance(models, dict)
    assert models["b"] == {"path": "a.gguf", "context": 2}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a: 1\nb: [", ":2: invalid YAML: "),
        (b"a: 1\na: 2", ":2: `a` is already set in line 1"),
        (b"a:\n  b: 1\n  b: 2", ":3: `b` is already set in line 2"),
        (b"[1]", ": expected a mapping"),
        (b"text", ": expected a mapping"),
        (b"---\na: 1\n---\nb: 2", ":3: invalid YAML: "),
        (b"\xff\xfe\x00", ": invalid YAML: "),
        (b"a: \x00", ": invalid YAML: "),
        (b"!!python/object/apply:os.system [true]", ":1: invalid YAML: "),
        (b"a: 2024-13-45", ": invalid YAML: "),
        (b"{" * 3000, ": invalid YAML: "),
        (b"[" * 200_000, ": invalid YAML: "),  # libyaml's own composer would crash
        (b"- " * 100_000, ": invalid YAML: "),
        (b"? [a]\n: 1", "invalid YAML"),
    ],
)
def test_invalid_file(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    with pytest.raises(YamlFileError) as caught:
        read_yaml_file(path)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("content", [b"", b"# nothing", b"---\n", b"null"])
def test_empty_file_is_an_empty_mapping(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(content)
    assert read_yaml_file(tmp_path / "f.yaml").content == {}


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(YamlFileError, match="No such file"):
        read_yaml_file(tmp_path / "f.yaml")
