"""What commands write to a terminal is safe, whatever it contains."""

from __future__ import annotations

import base64
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.text import escape_controls
from dragoman.cli.conversation.attachments import find_images, make_content
from dragoman.config import uses_color


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_no_control_character_is_left(pieces: list[str]) -> None:
    text = "".join(pieces)
    escaped = escape_controls(text)
    controls = {character for character in escaped if unicodedata.category(character) == "Cc"}
    assert controls <= {"\n", "\t"}
    assert "".join(map(escape_controls, pieces)) == escaped


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain ünïcode 漢字 🙂\n\tx", "plain ünïcode 漢字 🙂\n\tx"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x9b31m", "\ufffd31m"),
        ("a\r\nb", "a\nb"),
        ("\u202eevil", "\ufffdevil"),
    ],
)
def test_control_characters_are_shown(text: str, escaped: str) -> None:
    assert escape_controls(text) == escaped


@pytest.mark.parametrize(
    ("environment", "is_colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colors_follow_the_environment(environment: dict[str, str], is_colored: bool) -> None:
    assert uses_color(environment) is is_colored


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "my photo.JPG", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("What is in a.png?", ["a.png"]),
        ("Compare ./a.png and 'my photo.JPG', please.", ["a.png", "my photo.JPG"]),
        (r"Look at my\ photo.JPG.", ["my photo.JPG"]),
        ("What is in missing.png, notes.txt or a.pngx?", []),
        ("nothing at all", []),
        ("x" * 2_000_000 + " a.png", ["a.png"]),  # as quick as a text with spaces
        ("\\x" * 500_000 + ".png", []),
    ],
    ids=lambda value: str(value)[:30],
)
def test_images_are_found_by_path(pictures: Path, text: str, names: list[str]) -> None:
    assert [path.name for path in find_images(text)] == names


def test_images_become_parts_of_the_message(pictures: Path) -> None:
    text, image = make_content("What is in a.png?", "m", ("text", "image"))
    assert text == {"type": "text", "text": "What is in a.png?"}
    data = base64.b64encode(b"a.png").decode()
    assert image["image_url"]["url"] == f"data:image/png;base64,{data}"
    with pytest.raises(CommandFailed, match="does not read images"):
        make_content("What is in a.png?", "m", ("text",))
