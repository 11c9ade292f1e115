"""Converts tools and results of remote servers into texts for a model, within limits.

Remote servers are not trusted. Lists and schemas have limits. Images and other binary content are
described in the text. Images and audio also come beside it, for models that read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dragoman.mcp.types import ListedTool, ResultMedia, ToolCallResult
from dragoman.types import Json

if TYPE_CHECKING:
    from mcp_types import (
        BlobResourceContents,
        CallToolResult,
        ContentBlock,
        TextResourceContents,
        Tool,
    )

MAX_NAME, MAX_DESCRIPTION = 128, 8192  # characters
MAX_SCHEMA, MAX_DEPTH = 64 * 1024, 32  # characters, and levels of nesting
MAX_ERROR = 2000  # characters
ANY_OBJECT: dict[str, Json] = {"type": "object"}


def convert_tool(tool: Tool) -> ListedTool | None:
    """Return a tool within our limits; None if its name cannot be used."""
    if not tool.name or len(tool.name) > MAX_NAME or not tool.name.isprintable():
        return None
    hints = tool.annotations
    return ListedTool(
        name=tool.name,
        description=(tool.description or "")[:MAX_DESCRIPTION] or None,
        input_schema=tool.input_schema if _is_within_limits(tool.input_schema) else ANY_OBJECT,
        annotations=None if hints is None else hints.model_dump(by_alias=True, exclude_none=True),
    )


def _is_within_limits(schema: Json) -> bool:
    level: list[Json] = [schema]
    for _ in range(MAX_DEPTH):
        level = [child for value in level for child in _list_children(value)]
        if not level:
            return len(json.dumps(schema)) <= MAX_SCHEMA
    return False


def _list_children(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def convert_result(result: CallToolResult, max_chars: int) -> ToolCallResult:
    """Return the result of a call as text."""
    parts = [describe_block(block) for block in result.content]
    has_text = any(block.type == "text" and block.text for block in result.content)
    if result.structured_content is not None and not has_text:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = truncate("\n".join(parts), max_chars)
    if result.is_error:
        return ToolCallResult(error=text or "The tool failed without an error message.")
    return ToolCallResult(output=text, media=tuple(list_media(result.content)))


def list_media(blocks: Iterable[ContentBlock]) -> Iterator[ResultMedia]:
    """Yield the images and the audio of a result."""
    for block in blocks:
        if block.type == "image" or block.type == "audio":
            yield ResultMedia(
                kind=block.type,
                data=block.data,
                media_type=block.mime_type,
                description=describe_block(block),
                shown_description=f"[{block.type}]",
            )


def describe_block(block: ContentBlock) -> str:
    """Return one part of an output; binary content is described."""
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            size = _format_size(block.data)
            return f"[{block.type}, {block.mime_type}, {size}; it cannot be shown here]"
        case "resource_link":
            description = f": {block.description}" if block.description else ""
            return f"[resource {block.name} at {block.uri}{description}]"
        case "resource":
            return _describe_resource(block.resource)


def _describe_resource(resource: TextResourceContents | BlobResourceContents) -> str:
    if (text := getattr(resource, "text", None)) is not None:
        return f"[resource at {resource.uri}]\n{text}"
    kind, size = resource.mime_type or "binary", _format_size(getattr(resource, "blob", ""))
    return f"[resource at {resource.uri}, {kind}, {size}; it cannot be shown here]"


def _format_size(encoded: str) -> str:
    return f"{len(encoded) * 3 // 4:,} bytes"


def truncate(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    notice = f"[The output is cut here: {max_chars:,} of {len(text):,} characters are shown.]"
    return f"{text[:max_chars]}\n{notice}"
