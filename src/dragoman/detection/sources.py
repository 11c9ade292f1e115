"""Where a template comes from when it is a file: Jinja, or a `tokenizer_config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import ModelBroken

MAX_FILE = 16 << 20  # bytes of a file
# what a directory may hold, the first one wins
NAMES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
CONFIG = "tokenizer_config.json"
TEMPLATE_NAMES = ("tool_use", "default")  # of several templates, the one that knows tools


@dataclass(frozen=True)
class TemplateSource:
    """A template and what came with it."""

    template: str
    place: str
    vocabulary: frozenset[str] = frozenset()  # special tokens, where they are known
    config: dict[str, Any] | None = None  # the tokenizer's configuration, if there is one


def read_template_source(path: Path) -> TemplateSource | None:
    """The template of a file or a directory; None where that is something else."""
    if path.is_dir():
        files = (path / name for name in NAMES)
        found = next(
            (one for file in files if file.exists() and (one := read_template_source(file))), None
        )
        beside = path / CONFIG
        if found is None or not beside.exists():
            return found
        turn = _read_config(beside)
        return TemplateSource(found.template, found.place, read_special_tokens(turn), turn)
    if path.suffix in (".jinja", ".jinja2", ".j2", ".txt"):
        return TemplateSource(read_text(path), str(path))
    if path.suffix != ".json":
        return None
    turn = _read_config(path)
    template = _pick_template(turn.get("chat_template"))
    return (
        TemplateSource(template, str(path), read_special_tokens(turn), turn) if template else None
    )


def _pick_template(turn: Any) -> str | None:
    """One template, or the one of several that knows tools."""
    if isinstance(turn, str):
        return turn
    if not isinstance(turn, list):
        return None
    named = {one.get("name"): one.get("template") for one in turn if isinstance(one, dict)}
    kept = {name: text for name, text in named.items() if isinstance(text, str)}
    return next((kept[name] for name in TEMPLATE_NAMES if name in kept), None)


def read_special_tokens(config: dict[str, Any]) -> frozenset[str]:
    """The special tokens that a tokenizer's configuration names."""
    added = config.get("added_tokens_decoder")
    tokens = added.values() if isinstance(added, dict) else ()
    words = (token.get("content") for token in tokens if isinstance(token, dict))
    return frozenset(word for word in words if isinstance(word, str))


def _read_config(path: Path) -> dict[str, Any]:
    try:
        turn = json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise ModelBroken(f"{path.name} is no JSON.") from None
    return turn if isinstance(turn, dict) else {}


def read_text(path: Path) -> str:
    """All of a file, if it can be a template."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise ModelBroken(f"{path.name} is too large.")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise ModelBroken(f"{path.name} cannot be read.") from None
