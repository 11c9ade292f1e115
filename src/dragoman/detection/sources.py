"""Reads chat templates from files: Jinja, or a `tokenizer_config.json`.

The special tokens come from the files beside it: `tokenizer_config.json`, and `tokenizer.json`,
where newer checkpoints list them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.errors import ModelBroken
from dragoman.types import Json

MAX_FILE_BYTES = 16 << 20
# the files of a directory that may contain a template, the preferred one first
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
CONFIG_FILE, TOKENIZER_FILE = "tokenizer_config.json", "tokenizer.json"
MAX_TOKENIZER_BYTES = 128 << 20
TEMPLATE_NAMES = ("tool_use", "default")  # the template for tools is preferred


@dataclass(frozen=True)
class TemplateSource:
    """A template, and the tokenizer configuration that comes with it."""

    template: str
    path: str
    vocabulary: frozenset[str] = frozenset()  # special tokens, if known
    config: dict[str, Json] | None = None  # the tokenizer configuration, if there is one
    modalities: tuple[str, ...] = ("text",)  # what the model reads, if it is known


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
        return None if source is None else _add_tokenizer_files(source, path)
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


def _add_tokenizer_files(source: TemplateSource, path: Path) -> TemplateSource:
    """Add what the tokenizer files of a directory contain."""
    tokens, config = source.vocabulary, source.config
    if (path / CONFIG_FILE).exists():
        config = _read_config(path / CONFIG_FILE)
        tokens |= read_special_tokens(config)
    if (path / TOKENIZER_FILE).exists():
        tokens |= read_special_tokens(_read_config(path / TOKENIZER_FILE, MAX_TOKENIZER_BYTES))
    return replace(source, vocabulary=tokens, config=config)


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
    """Return the special tokens that a tokenizer file names."""
    by_id = config.get("added_tokens_decoder")
    entries: list[Json] = [*by_id.values()] if isinstance(by_id, dict) else []
    for key in ("added_tokens", "additional_special_tokens", "extra_special_tokens"):
        listed = config.get(key)
        entries += listed.values() if isinstance(listed, dict) else listed or ()
    contents = (entry.get("content") if isinstance(entry, dict) else entry for entry in entries)
    return frozenset(content for content in contents if isinstance(content, str))


def _read_config(path: Path, max_bytes: int = MAX_FILE_BYTES) -> dict[str, Json]:
    try:
        config = json.loads(read_text(path, max_bytes))
    except (ValueError, RecursionError):
        raise ModelBroken(f"{path.name} is not valid JSON.") from None
    return config if isinstance(config, dict) else {}


def read_text(path: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Read a text file, unless it is too large."""
    try:
        if path.stat().st_size > max_bytes:
            raise ModelBroken(f"{path.name} is too large.")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise ModelBroken(f"{path.name} cannot be read.") from None
