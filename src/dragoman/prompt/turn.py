"""A message with its content flattened to text, as the steps of `conversation` change it."""

from __future__ import annotations

from msgspec import Struct

from dragoman.types import ReplayedTurn, Role, ToolCall


class Turn(Struct, frozen=True, kw_only=True):
    role: Role
    text: str = ""
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    replay: ReplayedTurn | None = None
