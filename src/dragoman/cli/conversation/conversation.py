"""The messages of a conversation, and what is sent with them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from msgspec import Struct

from dragoman.cli.client.client import AnswerStream, DragomanClient
from dragoman.cli.conversation.answer import StreamedAnswer
from dragoman.types import Json


class ChatOptions(Struct, kw_only=True):
    """What the user set, for the requests and for the display."""

    system: str | None = None
    parameters: dict[str, Json] = {}  # fields of the request, under their names there
    is_verbose: bool = False  # prints the statistics of every answer
    shows_reasoning: bool = True


class SavedChat(Struct, kw_only=True, omit_defaults=True):
    """What `/save` writes."""

    messages: list[dict[str, Json]]
    model: str | None = None
    parameters: dict[str, Json] = {}


class Conversation:
    """The turns so far. A turn is added when its answer has ended, also one that was stopped."""

    def __init__(self, client: DragomanClient, model: str, options: ChatOptions) -> None:
        self.client = client
        self.model = model
        self.options = options
        self.turns: list[dict[str, Json]] = []

    @property
    def messages(self) -> list[dict[str, Json]]:
        system = self.options.system
        return [{"role": "system", "content": system}, *self.turns] if system else [*self.turns]

    @contextmanager
    def ask(self, content: Json) -> Iterator[tuple[AnswerStream, StreamedAnswer]]:
        """Send a message and keep the turn. Leaving the block early cancels the request.

        A turn without any answer is not kept, so that the next request is valid.
        """
        question = {"role": "user", "content": content}
        body = self.options.parameters | {
            "model": self.model,
            "messages": [*self.messages, question],
        }
        answer = StreamedAnswer(time.perf_counter())
        with closing(self.client.stream_chat(body)) as stream:
            try:
                yield stream, answer
            finally:
                if answer.text or answer.finish is not None:
                    self.turns += [question, _make_turn(answer)]

    def clear(self) -> None:
        self.turns.clear()

    def save(self) -> SavedChat:
        return SavedChat(
            model=self.model, parameters=self.options.parameters, messages=self.messages
        )

    def restore(self, saved: SavedChat) -> None:
        """Continue a saved conversation, with the model in use."""
        turns = [dict(message) for message in saved.messages]
        has_system = bool(turns) and turns[0].get("role") == "system"
        self.options.system = _join_text(turns.pop(0).get("content")) if has_system else None
        self.options.parameters = dict(saved.parameters)
        self.turns = turns


def _join_text(content: Json) -> str | None:
    """Return the text of a content, which may be a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return None if content is None else str(content)


def _make_turn(answer: StreamedAnswer) -> dict[str, Json]:
    turn: dict[str, Json] = {"role": "assistant", "content": answer.text}
    return turn | ({"reasoning_content": answer.reasoning} if answer.reasoning else {})
