"""A file of keys: one key per line, or YAML with entries.

A file whose name ends with `.yaml` or `.yml` is a mapping with `entries`, written like those under
`keys:` in dragoman.yaml. Every other file has one key per line, which may use everything except
admin routes; lines that begin with `#` are comments.
"""

from __future__ import annotations

import re
from pathlib import Path

from dragoman.keys.entries import KeyEntry, KeyFileError, make_plain_entry, parse_entries
from dragoman.options import suggest
from dragoman.options.yaml_file import YamlFileError, read_yaml_file
from dragoman.types.limits import NO_LIMITS, KeyLimits

ENTRIES = "entries"
# A line of YAML must not become a key that anyone can guess.
_LIKE_YAML = re.compile(r"\s*(?:-\s+)?(?:entries|name|hash|key|routes|models|limits|admin)\s*:")


def read_key_file(path: Path, default_limits: KeyLimits = NO_LIMITS) -> list[KeyEntry]:
    """Read the keys of a file, or raise `KeyFileError`."""
    if _is_yaml(path):
        return _read_yaml(path, default_limits)
    lines = _read_lines(path)
    for number, line in enumerate(lines, 1):
        if _LIKE_YAML.match(line):
            raise KeyFileError(
                f"{path}:{number}: this looks like YAML; let the name of the file end with .yaml"
            )
    return [
        make_plain_entry(line, where=f"{path}:{number}", limits=default_limits)
        for number, line in enumerate(lines, 1)
        if _is_key(line)
    ]


def read_plain_keys(path: Path) -> list[str]:
    """Return the keys that a file has one per line; the entries of YAML have digests instead."""
    return [] if _is_yaml(path) else [line.strip() for line in _read_lines(path) if _is_key(line)]


def _is_yaml(path: Path) -> bool:
    return path.suffix.lower() in (".yaml", ".yml")


def _is_key(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith("#")


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        reason = error.strerror or error
        raise KeyFileError(f"--api-key-file: cannot read {str(path)!r}: {reason}") from None
    except UnicodeDecodeError:
        raise KeyFileError(
            f"--api-key-file: cannot read {str(path)!r}: it is not text in UTF-8"
        ) from None


def _read_yaml(path: Path, default_limits: KeyLimits) -> list[KeyEntry]:
    try:
        file = read_yaml_file(path)
    except YamlFileError as error:
        raise KeyFileError(str(error)) from None
    for name in map(str, file.content):
        if name != ENTRIES:
            hint = suggest(name, [ENTRIES]) or f" Write the keys under `{ENTRIES}:`."
            raise KeyFileError(f"{file.locate(name)}: this setting does not exist.{hint}")
    entries = file.content.get(ENTRIES) or []
    if not isinstance(entries, list):
        raise KeyFileError(f"{file.locate(ENTRIES)}: `{ENTRIES}` must be a list")
    return parse_entries(entries, lambda *keys: file.locate(ENTRIES, *keys), default_limits)
