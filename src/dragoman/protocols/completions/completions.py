"""Text completions: a prompt goes to the model as it is."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from dragoman.errors import BadRequest, Unsupported
from dragoman.events import Completion, Delta, Token
from dragoman.protocols.shared import openai, response_format
from dragoman.protocols.shared.json_body import convert_value, decode_body
from dragoman.protocols.shared.openai import encode
from dragoman.types import Prompt, Request

encode_error = openai.encode_error
DEFAULT_MAX_TOKENS = 16
MOST_PROMPTS = 2048
MOST_CHOICES = 2048
Tokens = Annotated[list[openai.TokenId], Meta(min_length=1)]
Prompts = Annotated[list[str | Tokens], Meta(max_length=MOST_PROMPTS)]


class CompletionRequest(response_format.ConstraintFields, kw_only=True):
    """A prompt: a string, token ids, or a list of either."""

    prompt: str | list[Any]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


def decode_request(body: bytes, strict: bool = False) -> Request:
    said = decode_body(body, CompletionRequest, strict)
    if said.suffix:
        raise Unsupported("This model cannot fill in before a `suffix`.", param="suffix")
    n, best_of = said.n or 1, said.best_of
    if best_of is not None and best_of < n:
        raise BadRequest("`best_of` must not be less than `n`.", param="best_of")
    if best_of is not None and best_of > n and said.stream:
        raise BadRequest("`best_of` cannot be streamed.", param="best_of")
    special = said.add_special_tokens is not False
    every = decode_prompts(said.prompt)
    if len(every) * max(n, best_of or 0) > MOST_CHOICES:
        raise BadRequest(
            f"`n` times the number of prompts must be at most {MOST_CHOICES}.", param="n"
        )
    longest = DEFAULT_MAX_TOKENS if said.max_tokens is None else said.max_tokens
    shape, warnings = response_format.decode_constraint(said)
    return openai.make_request(
        said,
        strict,
        longest,
        constraint=shape,
        warnings=warnings,
        prompts=tuple(Prompt(content=one, add_special_tokens=special) for one in every),
        best_of=best_of,
        logprobs=said.logprobs,
        echo=bool(said.echo),
    )


def decode_prompts(said: str | list[Any], at: str = "prompt") -> list[str | list[int]]:
    """The four shapes of a prompt, as a list of prompts."""
    if isinstance(said, str):
        return [said]
    if not said:
        raise BadRequest(f"`{at}` must not be empty.", param=at)
    if type(said[0]) is int:
        return [convert_value(said, Tokens, at)]
    found: list[str | list[int]] = convert_value(said, Prompts, at)
    return found


class CompletionLogprobs(Struct):
    """Four lists of the same length, an entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct):
    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class TextCompletion(Struct):
    """A whole answer."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: openai.CompletionUsage


class TextOffsets:
    """Where each token's text begins, counted in characters of the whole text."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._seen = 0

    def encode_logprobs(self, tokens: Sequence[Token]) -> CompletionLogprobs:
        lists = CompletionLogprobs([], [], [], [])
        for token in tokens:
            lists.tokens.append(token.text)
            lists.token_logprobs.append(token.logprob)
            lists.top_logprobs.append(_top(token))
            lists.text_offset.append(self._seen)
            self._seen += len(self._decode(token.data))
        return lists


def _top(token: Token) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    return {other.text: other.logprob or 0.0 for other in reversed(token.top)}


class CompletionEncoder(openai.ChunkEncoder):
    """Writes one answer."""

    def __init__(self, request: Request, model: str, choices: int, prompt: int = 0) -> None:
        envelope = openai.make_envelope(request, "cmpl", "text_completion", model)
        after = b',"logprobs":null,"finish_reason":null}'
        ends = [
            envelope.make_frame(b'{"index":%d,"text":' % index, after) for index in range(choices)
        ]
        super().__init__(request, envelope, ends)
        self._logprobs = request.logprobs is not None
        self._offsets = [TextOffsets() for _ in range(choices)]

    def start(self) -> list[bytes]:
        return []

    def make_text_choice(self, delta: Delta) -> CompletionChoice:
        lists = (
            self._offsets[delta.choice].encode_logprobs(delta.tokens) if self._logprobs else None
        )
        return CompletionChoice(delta.text, delta.choice, lists, None)

    def make_final_choice(self, delta: Delta) -> CompletionChoice:
        return CompletionChoice("", delta.choice, None, delta.finish)

    def encode_whole(self, completion: Completion) -> bytes:
        choices = [
            CompletionChoice(
                choice.text,
                choice.index,
                TextOffsets().encode_logprobs(choice.tokens) if self._logprobs else None,
                choice.finish or "stop",
            )
            for choice in completion.choices()
        ]
        envelope = self.envelope
        answer = TextCompletion(
            envelope.id,
            "text_completion",
            envelope.created,
            envelope.model,
            choices,
            openai.encode_usage(completion.usage),
        )
        return encode(answer)


encoder = CompletionEncoder
