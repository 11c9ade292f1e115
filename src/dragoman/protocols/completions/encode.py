"""Encode a text completion, chunk by chunk or whole."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from dragoman.events import Choice, Completion, Delta, Token
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
    token_ids: Sequence[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: Sequence[int] | msgspec.UnsetType = msgspec.UNSET  # in a stream: once
    unnamed_tokens: int | msgspec.UnsetType = msgspec.UNSET  # beside `token_ids`, if there are any


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

    def __init__(self, *, as_ids: bool = False) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._position = 0
        self._write: Callable[[Token], str] = write_id if as_ids else write_text

    def encode_logprobs(self, tokens: Sequence[Token]) -> CompletionLogprobs:
        logprobs = CompletionLogprobs([], [], [], [])
        for token in tokens:
            logprobs.tokens.append(self._write(token))
            logprobs.token_logprobs.append(token.logprob)
            logprobs.top_logprobs.append(self._encode_top(token))
            logprobs.text_offset.append(self._position)
            self._position += len(self._decode(token.data))
        return logprobs

    def _encode_top(self, token: Token) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        return {self._write(other): other.logprob or 0.0 for other in reversed(token.top)}


def write_text(token: Token) -> str:
    return token.text


def write_id(token: Token) -> str:
    """Write a token as its id, in vLLM's form, because different tokens may have the same text."""
    return f"token_id:{token.id}"


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
        self._as_ids = request.writes_ids_as_tokens
        count = choices if self._with_logprobs else 0
        self._offsets = [TextOffsets(as_ids=self._as_ids) for _ in range(count)]
        self._prompt_ids = list_prompt_ids(answer)

    def start(self) -> list[bytes]:
        return []

    def make_text_choice(self, delta: Delta) -> CompletionChoice:
        logprobs = None
        if self._with_logprobs:
            logprobs = self._offsets[delta.choice].encode_logprobs(delta.tokens)
        choice = CompletionChoice(delta.text, delta.choice, logprobs, None)
        if self.request.returns_token_ids:
            self._add_ids(choice, delta.ids, delta.unnamed_tokens)
        return choice

    def _add_ids(self, choice: CompletionChoice, ids: Sequence[int], unnamed: int) -> None:
        choice.token_ids = ids
        choice.prompt_token_ids = self._prompt_ids.pop(choice.index, msgspec.UNSET)
        choice.unnamed_tokens = unnamed or msgspec.UNSET

    def make_final_choice(self, delta: Delta) -> CompletionChoice:
        stop = openai.make_stop_fields(self.request, delta.stop)
        if not self.request.returns_token_ids:
            return CompletionChoice("", delta.choice, None, delta.finish, *stop)
        choice = self.make_text_choice(delta)  # the last id is the token that ended the choice
        choice.finish_reason = delta.finish
        choice.stop_reason, choice.matched_stop, choice.stop_str = stop
        return choice

    def encode_whole(self, completion: Completion) -> bytes:
        choices = [self._make_whole_choice(choice) for choice in completion.build_choices()]
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

    def _make_whole_choice(self, choice: Choice) -> CompletionChoice:
        offsets = TextOffsets(as_ids=self._as_ids)
        encoded = CompletionChoice(
            choice.text,
            choice.index,
            offsets.encode_logprobs(choice.tokens) if self._with_logprobs else None,
            choice.finish or "stop",
            *openai.make_stop_fields(self.request, choice.stop),
        )
        if self.request.returns_token_ids:
            self._add_ids(encoded, choice.ids, choice.unnamed_tokens)
        return encoded


def list_prompt_ids(answer: AnswerInfo) -> dict[int, Sequence[int]]:
    """Return the tokens of the prompt of each choice, if the client wants them."""
    per_prompt = answer.choices // max(1, len(answer.prompt_ids))
    return {
        number * per_prompt + choice: ids
        for number, ids in enumerate(answer.prompt_ids)
        for choice in range(per_prompt)
    }
