"""From messages made of blocks to the turns that templates know.

A turn of the user's that brings results of tools becomes a turn of the tool's for each of them, and
then what the user says. Text in several blocks is joined. What is known but cannot be read by a
model of text is refused by name if the user sent it; inside a tool's result it becomes a word that
says so, since an agent sends its whole history every time and could never go on. Blocks that only
the vendor's servers make are left out, with a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest, Unsupported
from dragoman.protocols.messages import reasoning
from dragoman.protocols.messages.reasoning import Signing
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import convert
from dragoman.types import Message, ToolCall

BETWEEN = "\n\n"
VOLATILE = "x-anthropic-billing-header"  # differs in every request, and would spoil the cache
UNREADABLE = ("image", "document")
NOTHING = msgspec.Raw(b"{}")


class Piece(Struct):
    """A piece of something to read; which fields it has depends on its type."""

    type: str
    text: str | None = None
    title: str | None = None
    source: Any = None
    content: Any = None
    tool_name: str | None = None
    # Accepted and without effect here.
    cache_control: Any = None


class Block(Piece):
    """A piece of a message."""

    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.field(default_factory=lambda: NOTHING)
    tool_use_id: str | None = None
    is_error: bool | None = None


class Turn(Struct):
    """One message."""

    role: str
    content: str | list[Block]


class Conversation:
    """Takes turns down."""

    def __init__(self, signing: Signing) -> None:
        self.turns: list[Message] = []
        self.warnings: list[str] = []
        self._signing = signing

    def begin(self, said: str | list[Block] | None) -> None:
        """The system prompt, without the line that differs in every request."""
        if isinstance(said, str) and said.startswith(VOLATILE):
            said = said.partition("\n")[2]
        if isinstance(said, list):
            said = [one for one in said if not (one.text or "").startswith(VOLATILE)]
        text = self._joined(said or "", "system")
        if text:
            self.turns.append(Message(role="system", content=text))

    def add(self, said: Turn, at: str) -> None:
        match said.role:
            case "user":
                self._user(said.content, f"{at}.content")
            case "assistant":
                self._assistant(said.content, f"{at}.content")
            case "system":
                text = self._joined(said.content, f"{at}.content")
                self.turns.append(Message(role="system", content=text))
            case _:
                raise BadRequest(
                    f"`{at}.role` must be `user`, `assistant` or `system`.", param=f"{at}.role"
                )

    def close(self) -> bool:
        """Whether the last turn is to be gone on with: it is the assistant's, and text."""
        last = self.turns[-1]
        if last.role != "assistant" or last.tool_calls:
            return False
        if not last.content and not last.reasoning:
            del self.turns[-1]
        return bool(last.content)

    def _joined(self, said: str | Sequence[Piece], at: str) -> str:
        if isinstance(said, str):
            return said
        texts = [self._text(block, f"{at}[{i}]") for i, block in enumerate(said)]
        return BETWEEN.join(text for text in texts if text)

    def _text(self, block: Piece, at: str) -> str | None:
        """What a block says in words; None if nothing can be made of it."""
        match block.type:
            case "text":
                return _required(block.text, f"{at}.text")
            case "search_result":
                found = _plain(block.content, at)
                heads = (block.title, block.source if isinstance(block.source, str) else None)
                return "\n".join(text for text in (*heads, found) if text)
            case "document" if (text := _document(block, at)) is not None:
                return "\n".join(one for one in (block.title, text) if one)
            case "compaction":
                return block.content if isinstance(block.content, str) else None
            case kind if kind in UNREADABLE:
                raise Unsupported(f"This model reads text only, not `{kind}`.", param=at)
        self._left_out(block, at)
        return None

    def _left_out(self, block: Piece, at: str) -> None:
        self.warnings.append(f"`{at}` is left out: nothing can be made of `{block.type[:64]}`.")

    # The user's turns

    def _user(self, said: str | list[Block], at: str) -> None:
        if isinstance(said, str):
            self.turns.append(Message(role="user", content=said))
            return
        texts: list[str] = []
        results = 0
        for i, block in enumerate(said):
            if block.type == "tool_result":
                results += 1
                self.turns.append(self._result(block, f"{at}[{i}]"))
            elif text := self._text(block, f"{at}[{i}]"):
                texts.append(text)
        if texts or not results:
            self.turns.append(Message(role="user", content=BETWEEN.join(texts)))

    def _result(self, block: Block, at: str) -> Message:
        call = _required(block.tool_use_id, f"{at}.tool_use_id")
        content = _content(block.content, at)
        if isinstance(content, list):
            shown = [self._shown(one, f"{at}.content[{i}]") for i, one in enumerate(content)]
            content = BETWEEN.join(text for text in shown if text)
        if block.is_error and content.lstrip()[:5].lower() != "error":
            content = f"Error: {content}" if content else "Error"
        return Message(role="tool", content=content, tool_call_id=call)

    def _shown(self, block: Piece, at: str) -> str | None:
        """A piece of a tool's result."""
        if block.type == "tool_reference":
            return block.tool_name
        try:
            return self._text(block, at)
        except Unsupported as error:
            self.warnings.append(f"`{at}` is not shown to the model: {error.message}")
            return openai.unshown(block.type)

    # The assistant's turns

    def _assistant(self, said: str | list[Block], at: str) -> None:
        """Texts were cut anywhere and are put together as they are."""
        texts = [said] if isinstance(said, str) else []
        recalled: list[str] = []
        calls: list[ToolCall] = []
        for i, block in enumerate(said if isinstance(said, list) else ()):
            where = f"{at}[{i}]"
            match block.type:
                case "thinking":
                    recalled += self._recalled(block, where)
                case "tool_use":
                    calls.append(_call(block, where))
                case "redacted_thinking":
                    pass
                case _:
                    texts.append(self._text(block, where) or "")
        text = "".join(texts)
        turn = Message(
            role="assistant",
            content=None if calls and not text else text,
            reasoning=BETWEEN.join(recalled) or None,
            tool_calls=tuple(calls),
        )
        self.turns.append(turn)

    def _recalled(self, block: Block, at: str) -> list[str]:
        thought = reasoning.recalled(block.thinking or "", block.signature or "", self._signing)
        if thought is None:
            self.warnings.append(f"`{at}` is not shown to the model: its signature is not ours.")
            return []
        return [thought]


def _document(block: Piece, at: str) -> str | None:
    """The text of a document that is nothing but text."""
    match block.source:
        case {"type": "text", "data": str(text)}:
            return text
        case {"type": "content", "content": content}:
            return _plain(content, f"{at}.source")
    return None


def _plain(said: Any, at: str) -> str:
    """The text inside a piece."""
    content = _content(said, at)
    if isinstance(content, str):
        return content
    return BETWEEN.join(piece.text for piece in content if piece.text)


def _call(block: Block, at: str) -> ToolCall:
    given = bytes(block.input).decode()
    return ToolCall(
        id=_required(block.id, f"{at}.id"),
        name=_required(block.name, f"{at}.name"),
        arguments="{}" if given == "null" else given,
    )


def _content(said: Any, at: str) -> str | list[Piece]:
    content: str | list[Piece] | None = convert(said, str | list[Piece] | None, f"{at}.content")
    return "" if content is None else content


def _required(said: str | None, at: str) -> str:
    if said is None:
        raise BadRequest(f"`{at}` is required.", param=at, code="missing_required_parameter")
    return said
