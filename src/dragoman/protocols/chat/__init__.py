"""Chat completions: OpenAI's `/v1/chat/completions`.

decode             the request body, into a `Request`
repeated_fields    what the fields of earlier requests came to
tools              its tools, and which of them may be called
encode             the response: a stream of chunks, or one completion
stored             completions that are stored: updates, lists and messages
"""

from __future__ import annotations

from dragoman.protocols.chat.decode import ChatRequest, decode_request
from dragoman.protocols.chat.encode import ChatCompletion, ChatEncoder
from dragoman.protocols.dialect import AnswerInfo, Dialect, DialectContext, pass_strict
from dragoman.protocols.shared import openai
from dragoman.types import Request

__all__ = ["DIALECT", "ChatCompletion", "ChatEncoder", "ChatRequest", "decode_request"]


def _make_encoder(request: Request, answer: AnswerInfo, _: DialectContext) -> ChatEncoder:
    return ChatEncoder(request, answer)


DIALECT: Dialect[Request] = Dialect(
    name="chat",
    decode=pass_strict(decode_request),
    make_encoder=_make_encoder,
    make_response_id=lambda: openai.make_id("chatcmpl"),
    encode_error=openai.encode_error,
)
