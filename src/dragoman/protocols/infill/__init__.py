"""Filling in text: llama-server's `/infill`, which editors use.

decode    the request body, into a `Request`
encode    the response: a stream of events, or one object
"""

from __future__ import annotations

from dragoman.protocols.dialect import AnswerInfo, Dialect, DialectContext, pass_strict
from dragoman.protocols.infill.decode import InfillRequest, decode_request
from dragoman.protocols.infill.encode import InfillEncoder, InfillResponse
from dragoman.protocols.shared import openai
from dragoman.types import Request

__all__ = ["DIALECT", "InfillEncoder", "InfillRequest", "InfillResponse", "decode_request"]


def _make_encoder(request: Request, answer: AnswerInfo, _: DialectContext) -> InfillEncoder:
    return InfillEncoder(answer.model, answer.make_report)


DIALECT: Dialect[Request] = Dialect(
    name="infill",
    decode=pass_strict(decode_request),
    make_encoder=_make_encoder,
    encode_error=openai.encode_error,
)
