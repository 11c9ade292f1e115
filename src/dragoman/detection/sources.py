"""Where a template comes from when it is a file: Jinja, or a `tokenizer_config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import ModelBroken

LARGEST = 16 << 20  # bytes of a file
# what a directory may hold, the first one wins
NAMES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
CONFIG = "tokenizer_config.json"
NAMED = ("tool_use", "default")  # of several templates, the one that knows tools


@dataclass(frozen=True)
class Source:
    """A template and what came with it."""

    template: str
    place: str
    vocabulary: frozenset[str] = frozenset()  # special tokens, where they are known
    config: dict[str, Any] | None = None  # the tokenizer's configuration, if there is one


def from_path(path: Path) -> Source | None:
    """The template of a file or a directory; None where that is something else."""
    if path.is_dir():
        files = (path / name for name in NAMES)
        found = next((one for file in files if file.exists() and (one := from_path(file))), None)
        beside = path / CONFIG
        if found is None or not beside.exists():
            return found
        said = _config(beside)
        return Source(found.template, found.place, vocabulary(said), said)
    if path.suffix in (".jinja", ".jinja2", ".j2", ".txt"):
        return Source(text_of(path), str(path))
    if path.suffix != ".json":
        return None
    said = _config(path)
    template = _template(said.get("chat_template"))
    return Source(template, str(path), vocabulary(said), said) if template else None


def _template(said: Any) -> str | None:
    """One template, or the one of several that knows tools."""
    if isinstance(said, str):
        return said
    if not isinstance(said, list):
        return None
    named = {one.get("name"): one.get("template") for one in said if isinstance(one, dict)}
    kept = {name: text for name, text in named.items() if isinstance(text, str)}
    return next((kept[name] for name in NAMED if name in kept), None)


def vocabulary(config: dict[str, Any]) -> frozenset[str]:
    """The special tokens that a tokenizer's configuration names."""
    added = config.get("added_tokens_decoder")
    tokens = added.values() if isinstance(added, dict) else ()
    words = (token.get("content") for token in tokens if isinstance(token, dict))
    return frozenset(word for word in words if isinstance(word, str))


def _config(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(text_of(path))
    except (ValueError, RecursionError):
        raise ModelBroken(f"{path.name} is no JSON.") from None
    return said if isinstance(said, dict) else {}


def text_of(path: Path) -> str:
    """All of a file, if it can be a template."""
    try:
        if path.stat().st_size > LARGEST:
            raise ModelBroken(f"{path.name} is too large.")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise ModelBroken(f"{path.name} cannot be read.") from None
