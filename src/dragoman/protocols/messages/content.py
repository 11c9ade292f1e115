"""Decode messages made of blocks into the messages that chat templates know.

A user message that brings tool results becomes one tool message for each result, followed by the
user's own content. Text of several blocks is joined. Blocks that only the vendor's servers produce
are dropped, with a warning.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest
from dragoman.protocols.messages import reasoning
from dragoman.protocols.shared.content import (
    ContentPartFields,
    decode_media,
    merge_text,
)
from dragoman.protocols.shared.json_body import convert_value, require
from dragoman.protocols.shared.signer import ContentSigner
from dragoman.types import (
    Content,
    ContentPart,
    Json,
    Message,
    TextPart,
    ToolCall,
    make_text_content,
)

SEPARATOR = "\n\n"
BILLING_HEADER = "x-anthropic-billing-header"  # differs in every request: it would defeat the cache
EMPTY_OBJECT = msgspec.Raw(b"{}")


class NestedBlock(Struct):
    """A block inside a tool result, a document or a search result."""

    type: str
    text: str | None = None
    title: str | None = None
    source: Json = None
    content: Json = None
    tool_name: str | None = None
    # Accepted and without effect here.
    cache_control: Json = None


class ContentBlock(NestedBlock):
    """A block of a message; which fields it has depends on its type."""

    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.field(default_factory=lambda: EMPTY_OBJECT)
    tool_use_id: str | None = None
    is_error: bool | None = None


class MessageParam(Struct):
    """One message of the conversation."""

    role: str
    content: str | list[ContentBlock]


class ConversationDecoder:
    """Collects the messages of a conversation, and warnings about dropped blocks."""

    def __init__(self, signer: ContentSigner) -> None:
        self.messages: list[Message] = []
        self.warnings: list[str] = []
        self.result_params: dict[int, str] = {}  # see `Chat.result_params`
        self._signer = signer
        self._is_compacted = False  # the beginning of the conversation is only known as a summary

    def add_system(self, system: str | list[ContentBlock] | None) -> None:
        """Add the system prompt without the line that differs in every request."""
        if isinstance(system, str) and system.startswith(BILLING_HEADER):
            system = system.partition("\n")[2]
        if isinstance(system, list):
            system = [b for b in system if not (b.text or "").startswith(BILLING_HEADER)]
        content = self._decode_content(system or "", "system")
        if content:
            self.messages.append(Message(role="system", content=content))

    def add(self, message: MessageParam, path: str) -> None:
        match message.role:
            case "user":
                self._add_user(message.content, f"{path}.content")
            case "assistant":
                self._add_assistant(message.content, f"{path}.content")
            case "system":
                content = self._decode_content(message.content, f"{path}.content")
                self.messages.append(Message(role="system", content=content))
            case _:
                raise BadRequest(
                    f"`{path}.role` must be `user`, `assistant` or `system`.", param=f"{path}.role"
                )

    def continues_last_message(self) -> bool:
        """Return whether the answer continues the last message, an assistant message with text.

        An assistant message at the end that is empty is dropped.
        """
        last = self.messages[-1]
        if last.role != "assistant" or last.tool_calls:
            return False
        if not last.content and not last.reasoning:
            del self.messages[-1]
        return bool(last.content)

    def _decode_content(self, content: str | Sequence[NestedBlock], path: str) -> Content:
        if isinstance(content, str):
            return make_text_content(content)
        parts = [self._decode_block(block, f"{path}[{i}]") for i, block in enumerate(content)]
        return _join_blocks(parts)

    def _decode_block(self, block: NestedBlock, path: str) -> ContentPart | None:
        """Decode a block that the model reads; None, with a warning, if it cannot be read."""
        match block.type:
            case "text":
                return TextPart(require(block.text, f"{path}.text"))
            case "search_result":
                source = block.source if isinstance(block.source, str) else None
                return _join_lines(block.title, source, _decode_nested_text(block.content, path))
            case "document" if (text := _decode_text_document(block, path)) is not None:
                return _join_lines(block.title, text)
            case "image" | "document":
                fields = ContentPartFields(block.type, source=block.source, title=block.title)
                return decode_media(fields, path)
            case "compaction":
                self._is_compacted = True
                return TextPart(block.content) if isinstance(block.content, str) else None
        self.warnings.append(
            f"`{path}` is ignored: blocks of type `{block.type[:64]}` are not supported."
        )
        return None

    # User messages

    def _add_user(self, content: str | list[ContentBlock], path: str) -> None:
        if isinstance(content, str):
            self.messages.append(Message(role="user", content=make_text_content(content)))
            return
        parts: list[ContentPart | None] = []
        has_results = False
        for i, block in enumerate(content):
            if block.type == "tool_result":
                has_results = True
                self.messages.append(self._decode_tool_result(block, f"{path}[{i}]"))
            else:
                parts.append(self._decode_block(block, f"{path}[{i}]"))
        own = _join_blocks(parts)
        if own or not has_results:
            self.messages.append(Message(role="user", content=own))

    def _decode_tool_result(self, block: ContentBlock, path: str) -> Message:
        call_id = require(block.tool_use_id, f"{path}.tool_use_id")
        nested = _read_nested(block.content, path)
        if isinstance(nested, str):
            content = make_text_content(nested)
        else:
            content = _join_blocks(
                [self._decode_result_block(b, f"{path}.content[{i}]") for i, b in enumerate(nested)]
            )
        if block.is_error:
            content = _mark_as_error(content)
        if not self._is_compacted:
            self.result_params[len(self.messages)] = f"{path}.tool_use_id"
        return Message(role="tool", content=content, tool_call_id=call_id)

    def _decode_result_block(self, block: NestedBlock, path: str) -> ContentPart | None:
        if block.type == "tool_reference":
            return TextPart(block.tool_name or "")
        return self._decode_block(block, path)

    # Assistant messages

    def _add_assistant(self, content: str | list[ContentBlock], path: str) -> None:
        """Concatenate text blocks without a separator: they may be cut anywhere."""
        parts: list[ContentPart] = []
        reasonings: list[str] = []
        calls: list[ToolCall] = []
        if isinstance(content, str):
            parts, content = [TextPart(content)], []
        for i, block in enumerate(content):
            block_path = f"{path}[{i}]"
            match block.type:
                case "thinking":
                    reasonings += self._decode_reasoning(block, block_path)
                case "tool_use":
                    calls.append(_decode_tool_use(block, block_path))
                case "redacted_thinking":
                    pass
                case _:
                    parts += [part] if (part := self._decode_block(block, block_path)) else []
        message = Message(
            role="assistant",
            content=merge_text(parts),
            reasoning=SEPARATOR.join(reasonings) or None,
            tool_calls=tuple(calls),
        )
        self.messages.append(message)

    def _decode_reasoning(self, block: ContentBlock, path: str) -> list[str]:
        text = reasoning.verify_reasoning(block.thinking or "", block.signature or "", self._signer)
        if text is None:
            self.warnings.append(
                f"`{path}` is not shown to the model: its signature was not created by this server."
            )
            return []
        return [text]


def _join_blocks(parts: Sequence[ContentPart | None]) -> Content:
    """Join the parts of blocks; those without content are left out. Texts get an empty line."""
    joined: list[ContentPart] = []
    for part in parts:
        if part is None or part == TextPart(""):
            continue
        if isinstance(part, TextPart) and joined and isinstance(joined[-1], TextPart):
            joined.append(TextPart(SEPARATOR))
        joined.append(part)
    return merge_text(joined)


def _join_lines(*texts: str | None) -> TextPart:
    return TextPart("\n".join(text for text in texts if text))


def _mark_as_error(content: Content) -> Content:
    if not content:
        return make_text_content("Error")
    first = content[0]
    if isinstance(first, TextPart) and first.text.lstrip()[:5].lower() == "error":
        return content
    return merge_text((TextPart("Error: "), *content))


def _decode_text_document(block: NestedBlock, path: str) -> str | None:
    """Return the text of a document that is plain text."""
    match block.source:
        case {"type": "text", "data": str(text)}:
            return text
        case {"type": "content", "content": content}:
            return _decode_nested_text(content, f"{path}.source")
    return None


def _decode_nested_text(content: Json, path: str) -> str:
    """Return the text of nested blocks; blocks of other kinds are left out."""
    nested = _read_nested(content, path)
    if isinstance(nested, str):
        return nested
    return SEPARATOR.join(block.text for block in nested if block.text)


def _decode_tool_use(block: ContentBlock, path: str) -> ToolCall:
    arguments = bytes(block.input).decode()
    return ToolCall(
        id=require(block.id, f"{path}.id"),
        name=require(block.name, f"{path}.name"),
        arguments="{}" if arguments == "null" else arguments,
    )


def _read_nested(content: Json, path: str) -> str | list[NestedBlock]:
    nested: str | list[NestedBlock] | None = convert_value(
        content, str | list[NestedBlock] | None, f"{path}.content"
    )
    return "" if nested is None else nested
