"""Edits of models.yaml keep comments and other entries, or do not happen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from dragoman.errors import BadRequest
from dragoman.models.management.mapping_file import add_entry, read_entries, remove_entry

VALUE = {"path": "z.gguf", "context": 9}
FILES = {
    "missing": None,
    "empty": "",
    "comment": "# only a comment\n",
    "block": "# head\na: x.gguf  # tail\n# end\n",
    "options": "a:\n  path: x\n  sampling:\n    temperature: 1\n\n\n# end\n",
    "nested": "models:\n  a: x.gguf\n  # about b\n  b:\n    path: y.gguf\n\n# end\n",
    "flow": "{a: x.gguf, b: y.gguf}\n",
    "empty flow": "models: {}\n",
    "document": "---\na: x.gguf\n",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_entry_is_added_and_removed_without_a_trace(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "new" / "models.yaml" if text is None else tmp_path / "models.yaml"
    if text is not None:
        file.write_text(text)
    before = read_entries(file)
    add_entry(file, "new: one", VALUE)
    assert read_entries(file) == before | {"new: one": VALUE}
    comments = [line for line in (text or "").splitlines() if "#" in line]
    assert all(line in file.read_text().splitlines() for line in comments)
    remove_entry(file, "new: one")
    assert file.read_text() == (text or "")


@pytest.mark.parametrize("text", [text for text in FILES.values() if text], ids=str)
def test_all_entries_can_be_removed(text: str, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(text)
    for name in list(read_entries(file)):
        remove_entry(file, name)
    assert not read_entries(file)
    add_entry(file, "again", "x.gguf")
    assert read_entries(file) == {"again": "x.gguf"}


@pytest.mark.parametrize(
    "text", ["a: |\n  text\n  # not a comment\n", "- a\n", "a: [\n", "a: x\n---\nb: y\n"]
)
def test_file_that_cannot_be_edited_stays_as_it_is(text: str, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(text)
    with pytest.raises(BadRequest, match="by hand"):
        add_entry(file, "new", VALUE)
    assert file.read_text() == text
    assert os.listdir(tmp_path) == ["models.yaml"]


def test_link_and_mode_of_the_file_stay(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text("a: x.gguf\n")
    (tmp_path / "real.yaml").chmod(0o600)
    (tmp_path / "models.yaml").symlink_to("real.yaml")
    add_entry(tmp_path / "models.yaml", "b", "y.gguf")
    assert (tmp_path / "models.yaml").is_symlink()
    assert (tmp_path / "real.yaml").stat().st_mode & 0o777 == 0o600
    assert yaml.safe_load((tmp_path / "real.yaml").read_text()) == {"a": "x.gguf", "b": "y.gguf"}
