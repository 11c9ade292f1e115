"""Edits `models.yaml`, and leaves comments and other entries as they are.

The text is changed only where an entry begins or ends. The result is parsed before it is written:
if it is not exactly the old content with that one change, the file stays as it was and the caller
is asked to edit it by hand. The file is replaced in one step.
"""

from __future__ import annotations

import copy
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml

from dragoman.errors import BadRequest
from dragoman.types import Json

NESTED = "models"  # the key that may hold the entries
NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
PLAIN_NAME = re.compile(r"[A-Za-z][\w./-]*", re.ASCII)


def add_entry(file: Path, name: str, value: Json) -> None:
    """Add an entry at the end of the mapping."""

    def change(entries: dict[Json, Json]) -> None:
        entries[name] = value

    _edit(file, lambda text, node: _insert(text, node, _format_entry(name, value)), change)


def replace_entry(file: Path, old_name: str, name: str, value: Json) -> None:
    """Replace an entry by another one, in one step."""

    def edit(text: str, node: yaml.MappingNode | None) -> str:
        rest = _delete(text, node, old_name)
        return _insert(rest, _find_mapping(rest), _format_entry(name, value))

    def change(entries: dict[Json, Json]) -> None:
        del entries[old_name]
        entries[name] = value

    _edit(file, edit, change)


def remove_entry(file: Path, name: str) -> None:
    """Remove an entry."""

    def change(entries: dict[Json, Json]) -> None:
        del entries[name]

    _edit(file, lambda text, node: _delete(text, node, name), change)


def read_entries(file: Path) -> dict[Json, Json]:
    """Return the entries as they are in the file."""
    return _get_entries(_parse(file, _read(file)))


def _edit(
    file: Path,
    edit: Callable[[str, yaml.MappingNode | None], str],
    change: Callable[[dict[Json, Json]], None],
) -> None:
    text = _read(file)
    expected = copy.deepcopy(_parse(file, text))
    change(_get_entries(expected))
    edited = edit(text, _find_mapping(text))
    try:
        is_expected = (yaml.safe_load(edited) or {}) == expected
    except yaml.YAMLError:
        is_expected = False
    if not is_expected:
        raise BadRequest(f"{file.name} cannot be changed safely; edit it by hand.")
    _write(file, edited)


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8-sig") if file.exists() else ""


def _parse(file: Path, text: str) -> dict[Json, Json]:
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        raise BadRequest(f"{file.name} is not valid YAML; edit it by hand.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadRequest(f"{file.name} is not a mapping of names; edit it by hand.")
    return content


def _get_entries(content: dict[Json, Json]) -> dict[Json, Json]:
    nested = content.get(NESTED)
    return nested if isinstance(nested, dict) else content


def _find_mapping(text: str) -> yaml.MappingNode | None:
    """Return the node that holds the entries; None if there is none yet."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return None
    for key, value in root.value:
        if key.value == NESTED and isinstance(value, yaml.MappingNode):
            return value
    return root


def _format_entry(name: str, value: Json) -> str:
    is_plain = PLAIN_NAME.fullmatch(name) and yaml.safe_load(name) == name  # `true` is not
    key = name if is_plain else json.dumps(name, ensure_ascii=False)
    return f"{key}: {_to_json(value)}"


def _to_json(value: Json) -> str:
    """Return JSON that is YAML, too: without characters that YAML does not take, or folds."""
    text = json.dumps(value, ensure_ascii=False)
    return NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _insert(text: str, node: yaml.MappingNode | None, entry: str) -> str:
    if node is None:
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{entry}\n"
    if node.flow_style:
        brace = node.end_mark.index - 1
        separator = ", " if node.value else ""
        return f"{text[:brace].rstrip(' ')}{separator}{entry}{text[brace:]}"
    end = _find_end(text, node.value[-1][1])
    indent = " " * node.value[0][0].start_mark.column
    newline = "" if text[:end].endswith("\n") else "\n"
    return f"{text[:end]}{newline}{indent}{entry}\n{text[end:]}"


def _delete(text: str, node: yaml.MappingNode | None, name: str) -> str:
    pairs = node.value if node is not None else []
    [(key, value)] = [pair for pair in pairs if pair[0].value == name][:1]
    if node is None or not node.flow_style:
        start = text.rfind("\n", 0, key.start_mark.index) + 1
        rest = text[_find_end(text, value) :]
        if len(pairs) == 1 and key.start_mark.column > 0:  # `models:` must stay a mapping
            return f"{text[:start]}{' ' * key.start_mark.column}{{}}\n{rest}"
        return text[:start] + rest
    before, after = text[: key.start_mark.index], text[value.end_mark.index :]
    if re.match(r"\s*,", after):
        return before + re.sub(r"^\s*,\s*", "", after, count=1)
    return re.sub(r"\s*,\s*$", "", before) + after


def _find_end(text: str, value: yaml.Node) -> int:
    """Return where the lines of a value end, without comments and blank lines after it."""
    end = text.find("\n", value.end_mark.index)
    if value.end_mark.column == 0 and value.end_mark.index > value.start_mark.index:
        end = value.end_mark.index - 1  # the mark is at the beginning of the next line
    head = text if end < 0 else text[: end + 1]
    lines = head.splitlines(keepends=True)
    while lines and re.match(r"\s*(#.*)?$", lines[-1]):
        lines.pop()
    return sum(map(len, lines))


def _write(file: Path, text: str) -> None:
    """Replace the file in one step; a link stays a link."""
    target = Path(os.path.realpath(file))
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    handle, name = tempfile.mkstemp(prefix=".models-", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
