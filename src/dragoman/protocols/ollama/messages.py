"""The messages of a chat: content is a string, with images beside it.

Arguments of tool calls are objects. Clients leave out the ids of calls, and results name the id of
their call, or its tool, or neither; then they answer the calls in their order. An image is put in
front of its message's text, or where the text contains `[img]`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Annotated, TypeAlias, cast, get_args

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import BadRequest, InvalidType, InvalidValue
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.content import merge_text
from dragoman.protocols.shared.tool_choice import ChatTool
from dragoman.types import (
    AudioPart,
    Content,
    ContentPart,
    ImagePart,
    Message,
    Role,
    TextPart,
    ToolCall,
)

Images: TypeAlias = Annotated[list[str], Meta(max_length=1024)]
ROLES = get_args(Role)
PLACEHOLDER = "[img]"
LINE_BREAKS = {ord("\r"): None, ord("\n"): None}
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}", re.ASCII)
_AUDIO = re.compile(rb"RIFF....WAVE|ID3|\xff[\xe2-\xff]|fLaC|OggS", re.DOTALL)
SNIFFED_CHARACTERS = 16  # of base64; the beginning of a file tells what it contains


class OllamaTool(ChatTool):
    """A function the model may call."""

    type: str = "function"


class OllamaFunctionCall(Struct):
    """`arguments` is an object."""

    name: openai.Name
    arguments: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    index: int | None = None


class OllamaToolCall(Struct):
    """A call of an earlier turn."""

    function: OllamaFunctionCall
    id: str = ""


class OllamaMessage(Struct):
    """One turn."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: Images | None = None
    tool_calls: Annotated[list[OllamaToolCall], Meta(max_length=1024)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None  # of the tool, as earlier clients send it


def decode_messages(messages: Sequence[OllamaMessage]) -> tuple[Message, ...]:
    calls = CallMatcher()
    return tuple(
        _decode_message(message, calls, f"messages[{i}]") for i, message in enumerate(messages)
    )


def name_results(messages: Sequence[OllamaMessage]) -> dict[int, str]:
    """Return the paths that errors about tool results name, by the index of their message."""
    return {
        i: f"messages[{i}].tool_call_id" if message.tool_call_id else f"messages[{i}]"
        for i, message in enumerate(messages)
        if message.role.lower() == "tool"
    }


def _decode_message(message: OllamaMessage, calls: CallMatcher, path: str) -> Message:
    role = message.role.lower()
    if role not in ROLES:
        known = ", ".join(f"`{name}`" for name in ROLES)
        raise BadRequest(f"`{path}.role` must be one of {known}.", param=f"{path}.role")
    name = message.tool_name or message.name
    return Message(
        role=cast(Role, role),
        content=decode_content(message.content, message.images, path),
        name=name,
        reasoning=message.thinking or None,
        tool_calls=tuple(
            _decode_call(call, calls, f"{path}.tool_calls[{i}]")
            for i, call in enumerate(message.tool_calls or ())
        ),
        tool_call_id=calls.find_id(message.tool_call_id, name) if role == "tool" else None,
    )


def _decode_call(call: OllamaToolCall, calls: CallMatcher, path: str) -> ToolCall:
    arguments = bytes(call.function.arguments).decode()
    if arguments == "null":
        arguments = "{}"
    if not arguments.startswith("{"):
        param = f"{path}.function.arguments"
        raise InvalidType(f"`{param}` must be an object.", param=param)
    name = call.function.name
    return ToolCall(id=calls.add(call.id, name), name=name, arguments=arguments)


class CallMatcher:
    """Finds the calls that results answer."""

    def __init__(self) -> None:
        self._unanswered: list[tuple[str, str]] = []  # ids and names, in their order
        self._ids: set[str] = set()
        self._made_ids: set[str] = set()  # of calls that the client sent without one

    def add(self, call_id: str, name: str) -> str:
        """Add a call and return its id, which is made if the client sent none."""
        number = len(self._ids)
        while not call_id:
            made, number = f"call_{number}", number + 1
            if made not in self._ids:
                call_id = made
                self._made_ids.add(made)
        self._ids.add(call_id)
        self._unanswered.append((call_id, name))
        return call_id

    def find_id(self, call_id: str | None, name: str | None) -> str | None:
        """Return the id of the call that a result answers; its own, or None, if there is no such.

        A result whose id no call has answers a call without one.
        """
        if not call_id or call_id not in self._ids:
            left = [
                known for known in self._unanswered if not call_id or known[0] in self._made_ids
            ]
            named = [known for known in left if known[1] == name]
            call_id = next((known[0] for known in named or left), call_id)
        self._unanswered = [known for known in self._unanswered if known[0] != call_id]
        return call_id


def decode_content(text: str | None, images: Sequence[str] | None, path: str) -> Content:
    """Return a text with the images that belong to it; `path` is empty outside of messages."""
    if not images:
        return (TextPart(text),) if text else ()
    prefix = f"{path}.images" if path else "images"
    media = [_decode_image(image, f"{prefix}[{i}]") for i, image in enumerate(images)]
    first, *others = (text or "").split(PLACEHOLDER, len(media))
    unplaced = len(media) - len(others)
    parts: list[ContentPart] = [*media[:unplaced], TextPart(first)]
    for part, rest in zip(media[unplaced:], others, strict=True):
        parts += (part, TextPart(rest))
    return merge_text(parts)


def _decode_image(data: str, path: str) -> ImagePart | AudioPart:
    """Decode an image; sound is sent in the same field. Base64 may be broken into lines."""
    data = data.translate(LINE_BREAKS)
    if len(data) % 4 or not _BASE64.fullmatch(data):
        raise InvalidValue(f"`{path}` must be base64, without a `data:` prefix.", param=path)
    start = base64.b64decode(data[:SNIFFED_CHARACTERS])
    if _AUDIO.match(start):
        return AudioPart(wire_type="audio", param=path, data=data)
    return ImagePart(wire_type="images", param=path, data=data)
