"""What remote servers say, made fit for a model: in words, and never too much of it.

Everything here was written by a stranger. Lists and schemas have limits; a picture is named, not
shown, for a prompt is no place for its bytes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dragoman.mcp.types import CallResult, ListedTool

if TYPE_CHECKING:
    from mcp_types import (
        BlobResourceContents,
        CallToolResult,
        ContentBlock,
        TextResourceContents,
        Tool,
    )

NAME, DESCRIPTION = 128, 8192  # characters
SCHEMA, DEEP = 64 * 1024, 32  # characters, and how many things may stand in each other
ANYTHING: dict[str, Any] = {"type": "object"}
WORDS = 2000  # characters of an error


def convert_tool(tool: Tool) -> ListedTool | None:
    """A tool as it may be told; None for one that cannot be called by its name."""
    if not tool.name or len(tool.name) > NAME or not tool.name.isprintable():
        return None
    notes = tool.annotations
    return ListedTool(
        name=tool.name,
        description=(tool.description or "")[:DESCRIPTION] or None,
        input_schema=tool.input_schema if _modest(tool.input_schema) else ANYTHING,
        annotations=None if notes is None else notes.model_dump(by_alias=True, exclude_none=True),
    )


def _modest(schema: Any) -> bool:
    level = [schema]
    for _ in range(DEEP):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return len(json.dumps(schema)) <= SCHEMA
    return False


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def convert_result(result: CallToolResult, most: int) -> CallResult:
    """What a call gave, as a model can read it."""
    said = [describe_block(block) for block in result.content]
    if result.structured_content is not None and not any(_is_text(b) for b in result.content):
        said.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = truncate("\n".join(said), most)
    if result.is_error:
        return CallResult(error=text or "The tool failed, and does not say why.")
    return CallResult(output=text)


def _is_text(block: ContentBlock) -> bool:
    return block.type == "text" and bool(block.text)


def describe_block(block: ContentBlock) -> str:
    """A part of an output; what is no text is named."""
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return (
                f"[{block.type}, {block.mime_type}, {_size(block.data)}; it cannot be shown here]"
            )
        case "resource_link":
            told = f": {block.description}" if block.description else ""
            return f"[resource {block.name} at {block.uri}{told}]"
        case "resource":
            return _resource(block.resource)


def _resource(inner: TextResourceContents | BlobResourceContents) -> str:
    if (text := getattr(inner, "text", None)) is not None:
        return f"[resource at {inner.uri}]\n{text}"
    kind, size = inner.mime_type or "binary", _size(getattr(inner, "blob", ""))
    return f"[resource at {inner.uri}, {kind}, {size}; it cannot be shown here]"


def _size(encoded: str) -> str:
    return f"{len(encoded) * 3 // 4:,} bytes"


def truncate(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return (
        f"{text[:most]}\n[The output is cut here: {most:,} of {len(text):,} characters are shown.]"
    )
