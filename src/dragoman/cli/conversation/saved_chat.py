"""The file that `/save` writes and `/load` reads: JSON with the messages of a conversation.

A plain list of messages, as other programs write it, is read, too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.conversation.conversation import SavedChat
from dragoman.types import Json

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_BYTES = 64 << 20


def write_chat(path: Path, chat: SavedChat) -> None:
    """Write a conversation. A file that is not a saved conversation is not overwritten."""
    if path.exists():
        try:
            read_chat(path)
        except CommandFailed:
            raise CommandFailed(f"{path} exists and is not a saved conversation.") from None
    text = json.dumps(msgspec.to_builtins(chat), ensure_ascii=False, indent=2)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.touch(mode=0o600)
        part.write_text(text + "\n", encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CommandFailed(f"Cannot write {path}: {error.strerror}.") from None


def read_chat(path: Path) -> SavedChat:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CommandFailed(f"{path} is too large.")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CommandFailed(f"Cannot read {path}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise CommandFailed(f"{path} is not JSON.") from None
    if isinstance(content, list):
        content = {"messages": content}
    try:
        chat = msgspec.convert(content, SavedChat)
    except msgspec.ValidationError as error:
        raise CommandFailed(f"{path} is not a saved conversation: {error}.") from None
    for number, message in enumerate(chat.messages):
        _check_message(path, number, message)
    return chat


def _check_message(path: Path, number: int, message: dict[str, Json]) -> None:
    if message.get("role") not in ROLES:
        raise CommandFailed(f"{path}: messages[{number}].role must be one of {', '.join(ROLES)}.")
    content = message.get("content")
    is_missing = content is None and message["role"] != "assistant"  # which may only call tools
    if is_missing or not isinstance(content, str | list | None):
        raise CommandFailed(f"{path}: messages[{number}].content must be text or a list of parts.")
