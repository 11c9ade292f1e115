"""Encode a text completion, chunk by chunk or whole."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from dragoman.events import Completion, Delta, Token
from dragoman.protocols.dialect import AnswerInfo
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.openai import encode
from dragoman.protocols.shared.report import add_report
from dragoman.types import Request


class CompletionLogprobs(Struct):
    """Four lists of the same length, with one entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct):
    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    matched_stop: str | int | msgspec.UnsetType | None = msgspec.UNSET
    stop_str: str | msgspec.UnsetType = msgspec.UNSET


class TextCompletion(Struct):
    """A whole text completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: openai.CompletionUsage
    system_fingerprint: str


class TextOffsets:
    """Counts where the text of each token begins, in characters of the whole text."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._position = 0

    def encode_logprobs(self, tokens: Sequence[Token]) -> CompletionLogprobs:
        logprobs = CompletionLogprobs([], [], [], [])
        for token in tokens:
            logprobs.tokens.append(token.text)
            logprobs.token_logprobs.append(token.logprob)
            logprobs.top_logprobs.append(_encode_top(token))
            logprobs.text_offset.append(self._position)
            self._position += len(self._decode(token.data))
        return logprobs


def _encode_top(token: Token) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    return {other.text: other.logprob or 0.0 for other in reversed(token.top)}


class CompletionEncoder(openai.ChunkEncoder):
    """Encodes one text completion."""

    def __init__(self, request: Request, answer: AnswerInfo) -> None:
        self._fingerprint = answer.fingerprint
        extra = {"system_fingerprint": self._fingerprint}
        envelope = openai.make_envelope(request, "cmpl", "text_completion", answer.model, extra)
        choices = answer.choices
        after = b',"logprobs":null,"finish_reason":null}'
        frames = [envelope.make_frame(b'{"index":%d,"text":' % i, after) for i in range(choices)]
        super().__init__(request, envelope, frames, answer.make_report)
        self._with_logprobs = request.logprobs is not None
        self._offsets = [TextOffsets() for _ in range(choices if self._with_logprobs else 0)]

    def start(self) -> list[bytes]:
        return []

    def make_text_choice(self, delta: Delta) -> CompletionChoice:
        logprobs = None
        if self._with_logprobs:
            logprobs = self._offsets[delta.choice].encode_logprobs(delta.tokens)
        return CompletionChoice(delta.text, delta.choice, logprobs, None)

    def make_final_choice(self, delta: Delta) -> CompletionChoice:
        stop = openai.make_stop_fields(self.request, delta.stop)
        return CompletionChoice("", delta.choice, None, delta.finish, *stop)

    def encode_whole(self, completion: Completion) -> bytes:
        choices = [
            CompletionChoice(
                choice.text,
                choice.index,
                TextOffsets().encode_logprobs(choice.tokens) if self._with_logprobs else None,
                choice.finish or "stop",
                *openai.make_stop_fields(self.request, choice.stop),
            )
            for choice in completion.build_choices()
        ]
        envelope = self.envelope
        answer = TextCompletion(
            envelope.id,
            "text_completion",
            envelope.created,
            envelope.model,
            choices,
            openai.encode_usage(completion.usage),
            self._fingerprint,
        )
        return add_report(encode(answer), self.make_report())
