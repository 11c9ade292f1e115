"""Rejects tool results that answer no call.

A result answers a call of an earlier turn of the assistant that no other result has answered. Where
results directly follow their calls (`Chat.results_follow_calls`), only those of the last turn
count. A result without an id answers any call that is left, and any result answers a call without
an id. Results without a path in `Chat.result_params` are not checked: they come from a stored
conversation, or from one whose beginning is only known as a summary.
"""

from __future__ import annotations

from dragoman.errors import BadRequest
from dragoman.types import Chat, Message

MAX_ID = 80  # characters of an id in an error


def check_tool_results(chat: Chat) -> None:
    """Raise `BadRequest` for the first tool result that answers no call."""
    if not chat.result_params:
        return
    calls = UnansweredCalls()
    is_new_turn = True
    for index, message in enumerate(chat.messages):
        if message.role == "assistant":
            if is_new_turn and chat.results_follow_calls:
                calls = UnansweredCalls()
            calls.add(message)
        elif message.role == "tool":
            calls.answer(message.tool_call_id or "", chat.result_params.get(index))
        is_new_turn = message.role != "assistant"


class UnansweredCalls:
    """The calls of a conversation that no result has answered yet."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}  # by id, which may be empty; several calls may share one
        self._answered: set[str] = set()

    def add(self, message: Message) -> None:
        """Add the calls of a message."""
        for call in message.tool_calls:
            self._counts[call.id] = self._counts.get(call.id, 0) + 1

    def answer(self, call_id: str, param: str | None) -> None:
        """Remove the call that a result answers; raise `BadRequest` if the result is checked."""
        found = next((known for known in (call_id, "") if known in self._counts), None)
        if found is None and not call_id:
            found = next(iter(self._counts), None)
        if found is not None:
            self._answered |= {found, call_id}
            self._counts[found] -= 1
            if not self._counts[found]:
                del self._counts[found]
        elif param is not None:
            raise BadRequest(self._explain(call_id, param), param=param)

    def _explain(self, call_id: str, param: str) -> str:
        if not call_id:
            return (
                f"`{param}`: this result has no id, and every earlier call has a result. Send the "
                "call before its result, or leave out the result."
            )
        if call_id in self._answered:
            return (
                f"`{param}`: the call `{call_id[:MAX_ID]}` has a result already. Send one result "
                "for each call."
            )
        return (
            f"`{param}`: there is no call `{call_id[:MAX_ID]}` before this result. Send the call "
            "before its result, or leave out the result."
        )
