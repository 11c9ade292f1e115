"""Chat completions: OpenAI's `/v1/chat/completions`."""

from __future__ import annotations

from dragoman.protocols.chat.decode import decode_request as decode_chat
from dragoman.protocols.chat.encode import ChatEncoder
from dragoman.protocols.dialect import AnswerInfo, Dialect, DialectContext, needs_strict_only
from dragoman.protocols.shared import openai
from dragoman.types import Request

__all__ = ["DIALECT"]


def _make_encoder(request: Request, answer: AnswerInfo, _: DialectContext) -> ChatEncoder:
    return ChatEncoder(request, answer.model, answer.choices)


DIALECT: Dialect[Request] = Dialect(
    name="chat",
    decode=needs_strict_only(decode_chat),
    encoder=_make_encoder,
    encode_error=openai.encode_error,
)
