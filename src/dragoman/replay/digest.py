"""What a client was told, as digests: two tellings of one turn have the same.

White space around a text means nothing, nor does the way JSON is written: the order of members,
the spaces, `1.0` or `1`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.prompt.conversation import flatten_content
from dragoman.types import Message

SIZE = 16
EXACT = 2**53  # whole numbers beyond are not the same for everyone


class ReplayEntry(Struct, frozen=True, array_like=True):
    """A turn: digests of what was told, and the tokens."""

    answer_digest: bytes
    reasoning_digest: bytes  # empty where there were none
    opening: bytes  # tokens as numbers of four bytes
    ids: bytes


def digest(*parts: bytes | str) -> bytes:
    made = []
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        made += [len(data).to_bytes(8), data]
    return hashlib.blake2b(b"".join(made), digest_size=SIZE).digest()


def digest_answer(content: str | None, calls: Iterable[tuple[str, str]]) -> bytes:
    """Of an answer: its text and its calls, each a name and its arguments."""
    said = [part for name, arguments in calls for part in (name, canonical_json(arguments))]
    return digest((content or "").strip(), *said)


def digest_reasoning(reasoning: str | None) -> bytes:
    bare = (reasoning or "").strip()
    return digest(bare) if bare else b""


def digest_message(message: Message) -> bytes:
    return digest_answer(
        flatten_content(message.content),
        ((call.name, call.arguments) for call in message.tool_calls),
    )


def digest_prefixes(messages: Sequence[Message]) -> list[bytes]:
    """Of all that comes before each message, and of all of them: where an answer is in a chat."""
    place = b""
    found = [place]
    for message in messages:
        place = digest(place, message.role, message.tool_call_id or "", digest_message(message))
        found.append(place)
    return found


def canonical_json(arguments: str) -> bytes:
    """One way to write each value; what is no JSON stands for itself."""
    text = arguments.strip()
    if not text:
        return b"{}"
    try:
        return msgspec.json.encode(_plain(msgspec.json.decode(text)), order="sorted")
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text.encode("utf-8", "surrogatepass")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
