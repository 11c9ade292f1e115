"""Encode filled-in text, event by event or whole, with the field names of llama-server."""

from __future__ import annotations

from msgspec import Struct

from dragoman.errors import DragomanError
from dragoman.events import Completion, Delta, Finish, Usage
from dragoman.protocols.shared.openai import encode, encode_error
from dragoman.protocols.shared.report import MakeReport, add_report

CHUNK_START, CHUNK_END = b'data: {"index":0,"content":', b',"tokens":[],"stop":false}\n\n'


class InfillResponse(Struct):
    """The text, and how it ended."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: bool
    stop_type: str  # `eos`, `limit` or `word`
    stopping_word: str


class InfillEncoder:
    """Encodes one answer."""

    def __init__(self, model: str, make_report: MakeReport | None) -> None:
        self._model = model
        self._make_report = make_report
        self._finish: Finish | None = None
        self._stop: str | int | None = None

    def start(self) -> list[bytes]:
        return []

    def encode_delta(self, delta: Delta) -> list[bytes]:
        if delta.finish is not None:
            self._finish, self._stop = delta.finish, delta.stop
        return [CHUNK_START + encode(delta.text) + CHUNK_END] if delta.text else []

    def end(self, usage: Usage) -> list[bytes]:
        return [b"data: " + self._encode_end("", usage) + b"\n\n"]

    def fail(self, error: DragomanError) -> list[bytes]:
        return [b"data: " + encode_error(error) + b"\n\n"]

    def encode_whole(self, completion: Completion) -> bytes:
        [choice] = completion.build_choices()
        self._finish, self._stop = choice.finish, choice.stop
        return self._encode_end(choice.text, completion.usage)

    def _encode_end(self, content: str, usage: Usage) -> bytes:
        word = self._stop if isinstance(self._stop, str) else ""
        response = InfillResponse(
            index=0,
            content=content,
            tokens=[],
            stop=True,
            model=self._model,
            tokens_predicted=usage.completion,
            tokens_evaluated=usage.prompt,
            tokens_cached=usage.cached,
            truncated=False,
            stop_type="word" if word else "limit" if self._finish == "length" else "eos",
            stopping_word=word,
        )
        report = {} if self._make_report is None else self._make_report()
        return add_report(encode(response), report)
