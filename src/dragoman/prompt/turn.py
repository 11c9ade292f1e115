"""A message with its content flattened to text, as the steps of `conversation` change it."""

from __future__ import annotations

from collections.abc import Sequence

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


def is_alternating(turns: Sequence[Turn], *, with_system: bool) -> bool:
    """Whether user and assistant take turns, the user first; a system message may precede them."""
    expected = "user"
    for index, turn in enumerate(turns):
        role = turn.role
        if role == "system" and index == 0 and with_system:
            continue
        if role != expected:
            return False
        expected = "assistant" if role == "user" else "user"
    return bool(turns) and turns[-1].role != "system"
