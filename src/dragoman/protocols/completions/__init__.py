"""Text completions: OpenAI's `/v1/completions`. The prompt goes to the model as it is.

decode    the request body, into a `Request`
encode    the response: a stream of chunks, or one completion
"""

from __future__ import annotations

from dragoman.protocols.completions.decode import CompletionRequest, decode_request
from dragoman.protocols.completions.encode import CompletionEncoder, TextCompletion
from dragoman.protocols.dialect import AnswerInfo, Dialect, DialectContext, pass_strict
from dragoman.protocols.shared import openai
from dragoman.types import Request

__all__ = ["DIALECT", "CompletionEncoder", "CompletionRequest", "TextCompletion", "decode_request"]


def _make_encoder(request: Request, answer: AnswerInfo, _: DialectContext) -> CompletionEncoder:
    return CompletionEncoder(request, answer)


DIALECT: Dialect[Request] = Dialect(
    name="completions",
    decode=pass_strict(decode_request),
    make_encoder=_make_encoder,
    make_response_id=lambda: openai.make_id("cmpl"),
    encode_error=openai.encode_error,
)
