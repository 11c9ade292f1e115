"""Computes the digests by which a turn is recognised when a client sends it back.

Equivalent versions of a turn have the same digest: white space around texts is ignored, and so are
differences between equal JSON values (order of members, spaces, `1.0` or `1`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from dragoman.prompt.conversation import flatten_content
from dragoman.types import Json, Message

DIGEST_SIZE = 16
MAX_DECODED = 1 << 20  # characters of arguments; longer ones are compared as text
MAX_EXACT = 2**53  # larger whole numbers do not survive every JSON implementation


class ReplayEntry(Struct, frozen=True, array_like=True):
    """A stored turn: its digests and its tokens, packed in four bytes each."""

    answer_digest: bytes
    reasoning_digest: bytes  # empty if there is no reasoning
    opening: bytes
    ids: bytes


def digest(*parts: bytes | str) -> bytes:
    """Digest texts, each with its length, so that no two lists of texts have the same digest."""
    chunks = []
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        chunks += [len(data).to_bytes(8), data]
    return hashlib.blake2b(b"".join(chunks), digest_size=DIGEST_SIZE).digest()


def digest_answer(text: str | None, calls: Iterable[tuple[str, str]]) -> bytes:
    """Digest an answer: its text and its calls, each a name and its arguments."""
    parts = [part for name, arguments in calls for part in (name, normalize_arguments(arguments))]
    return digest((text or "").strip(), *parts)


def digest_reasoning(reasoning: str | None) -> bytes:
    text = (reasoning or "").strip()
    return digest(text) if text else b""


def digest_message(message: Message) -> bytes:
    calls = ((call.name, call.arguments) for call in message.tool_calls)
    return digest_answer(flatten_content(message.content), calls)


def digest_prefixes(messages: Sequence[Message]) -> list[bytes]:
    """Return a digest of everything before each message, and of all messages as the last one."""
    prefix = b""
    prefixes = [prefix]
    for message in messages:
        prefix = digest(prefix, message.role, message.tool_call_id or "", digest_message(message))
        prefixes.append(prefix)
    return prefixes


def make_call_key(scope_key: str, call_id: str) -> str:
    return digest("call", scope_key, call_id).hex()


def make_turn_key(scope_key: str, prefix_digest: bytes, answer_digest: bytes) -> str:
    return digest("turn", scope_key, prefix_digest, answer_digest).hex()


def normalize_arguments(arguments: str) -> bytes:
    """Return one form for each JSON value; text that is not JSON stays as it is."""
    text = arguments.strip()
    if not text:
        return b"{}"
    if len(text) > MAX_DECODED:
        return text.encode("utf-8", "surrogatepass")
    try:
        return msgspec.json.encode(_normalize(msgspec.json.decode(text)), order="sorted")
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text.encode("utf-8", "surrogatepass")


def _normalize(value: Json) -> Json:
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_EXACT:
        return int(value)
    if isinstance(value, list):
        return [_normalize(item) for item in value]
    if isinstance(value, dict):
        return {name: _normalize(item) for name, item in value.items()}
    return value
