"""Reads chat templates from files: Jinja, or a `tokenizer_config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import ModelBroken
from dragoman.types import Json

MAX_FILE_BYTES = 16 << 20
# the files of a directory that may contain a template, the preferred one first
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_NAMES = ("tool_use", "default")  # the template for tools is preferred


@dataclass(frozen=True)
class TemplateSource:
    """A template, and the tokenizer configuration that comes with it."""

    template: str
    path: str
    vocabulary: frozenset[str] = frozenset()  # special tokens, if known
    config: dict[str, Json] | None = None  # the tokenizer configuration, if there is one


def read_template_source(path: Path) -> TemplateSource | None:
    """Read the template of a file or directory; None if there is none."""
    if path.is_dir():
        files = (path / name for name in TEMPLATE_FILES)
        source = next(
            (
                candidate
                for file in files
                if file.exists() and (candidate := read_template_source(file))
            ),
            None,
        )
        config_path = path / CONFIG_FILE
        if source is None or not config_path.exists():
            return source
        config = _read_config(config_path)
        return TemplateSource(source.template, source.path, read_special_tokens(config), config)
    if path.suffix in (".jinja", ".jinja2", ".j2", ".txt"):
        return TemplateSource(read_text(path), str(path))
    if path.suffix != ".json":
        return None
    config = _read_config(path)
    template = _pick_template(config.get("chat_template"))
    return (
        TemplateSource(template, str(path), read_special_tokens(config), config)
        if template
        else None
    )


def _pick_template(template: Json) -> str | None:
    """Return a single template, or the preferred one of several."""
    if isinstance(template, str):
        return template
    if not isinstance(template, list):
        return None
    by_name = {
        candidate.get("name"): candidate.get("template")
        for candidate in template
        if isinstance(candidate, dict)
    }
    templates = {name: text for name, text in by_name.items() if isinstance(text, str)}
    return next((templates[name] for name in TEMPLATE_NAMES if name in templates), None)


def read_special_tokens(config: dict[str, Json]) -> frozenset[str]:
    """Return the special tokens that a tokenizer configuration names."""
    added = config.get("added_tokens_decoder")
    tokens = added.values() if isinstance(added, dict) else ()
    contents = (token.get("content") for token in tokens if isinstance(token, dict))
    return frozenset(content for content in contents if isinstance(content, str))


def _read_config(path: Path) -> dict[str, Json]:
    try:
        config = json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise ModelBroken(f"{path.name} is not valid JSON.") from None
    return config if isinstance(config, dict) else {}


def read_text(path: Path) -> str:
    """Read a text file, unless it is too large."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ModelBroken(f"{path.name} is too large.")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise ModelBroken(f"{path.name} cannot be read.") from None
