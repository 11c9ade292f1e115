"""Reads a YAML file and remembers the line of each key, so that a message can name it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml
from msgspec import Struct
from yaml.composer import Composer

MAX_BYTES = 4 << 20
MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`
MAX_DEPTH = 6  # of keys whose lines are remembered

KeyPath = tuple[str, ...]


class YamlFileError(ValueError):
    """A file cannot be read, or is not a mapping in YAML. The message names file and line."""


if yaml.__with_libyaml__:

    class FastLoader(Composer, yaml.CSafeLoader):
        """Loads YAML with the parser of libyaml, which takes a tenth of the time.

        Nodes are composed in Python: libyaml's own composer crashes if a file is nested too deeply.
        """

        def __init__(self, data: bytes) -> None:
            yaml.CSafeLoader.__init__(self, data)
            Composer.__init__(self)

else:
    FastLoader = yaml.SafeLoader  # type: ignore[assignment,misc]


class YamlFile(Struct, frozen=True):
    """The content of a file, and the line of each key."""

    path: Path
    content: Mapping[object, object]
    lines: Mapping[KeyPath, int]

    def locate(self, *keys: str) -> str:
        """Return `FILE:LINE` of a key, or of the closest key around it that has a line."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.path}:{self.lines[keys]}" if keys else str(self.path)


def read_yaml_file(path: Path) -> YamlFile:
    """Read a file that must hold a mapping; an empty file is an empty mapping."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise YamlFileError(f"{path}: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise YamlFileError(f"{path}: the file is too large")
    try:
        try:
            content, lines = _parse(path, FastLoader(data))
        except yaml.YAMLError:  # the slow parser says better where the mistake is
            content, lines = _parse(path, yaml.SafeLoader(data))
    except YamlFileError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise YamlFileError(f"{where}: invalid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = str(error).splitlines()[0] if str(error) else "too deeply nested"
        raise YamlFileError(f"{path}: invalid YAML: {problem}") from None
    if content is None:
        content = {}
    if not isinstance(content, Mapping):
        raise YamlFileError(f"{path}: expected a mapping (`key: value` lines)")
    return YamlFile(path, content, lines)


def describe_wrong_name(name: object) -> str | None:
    """Say what is wrong with a key that names something; None if nothing is."""
    if not isinstance(name, str):
        return f"the name {name!r} is not text; quote it"
    return None if name.strip() else "a name is empty"


def _parse(path: Path, loader: yaml.SafeLoader | FastLoader) -> tuple[object, dict[KeyPath, int]]:
    """Return the content of a file, and the line of each key."""
    lines: dict[KeyPath, int] = {}
    try:
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):  # before construction, which merges `<<`
            _collect_lines(path, node, (), lines)
        return None if node is None else loader.construct_document(node), lines
    finally:
        loader.dispose()


def _collect_lines(
    path: Path, node: yaml.MappingNode, prefix: KeyPath, lines: dict[KeyPath, int]
) -> None:
    """Remember the line of each key. A key that is there twice is an error.

    An element of a list has its index as its key.
    """
    for key_node, value_node in node.value:
        if key_node.tag == MERGE:
            continue
        keys = (*prefix, str(key_node.value))
        line = key_node.start_mark.line + 1
        if keys in lines:
            raise YamlFileError(f"{path}:{line}: `{keys[-1]}` is already set in line {lines[keys]}")
        lines[keys] = line
        _collect_value_lines(path, value_node, keys, lines)


def _collect_value_lines(
    path: Path, node: yaml.Node, keys: KeyPath, lines: dict[KeyPath, int]
) -> None:
    if len(keys) >= MAX_DEPTH:
        return
    if isinstance(node, yaml.MappingNode):
        _collect_lines(path, node, keys, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*keys, str(index))] = item.start_mark.line + 1
            _collect_value_lines(path, item, (*keys, str(index)), lines)
