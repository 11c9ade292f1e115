"""The Messages API of Anthropic: content in blocks, reasoning with a signature.

    decode               the request body, into a `Request`
    content              the blocks of its messages, into the messages that templates know
    tools                its tools, and which of them may be called
    reasoning            signatures: the model sees only reasoning that this server signed
    encode               the response: a stream of events, or one message
    errors               error bodies and their statuses
    model_list           the list of models
    file_list            files, as this API describes them
    rate_limit_headers   what is left of a client's limits

Reasoning is signed for the owner of a request, so decoding and encoding need a signer.
"""

from __future__ import annotations

from dragoman.errors import DragomanError
from dragoman.protocols.dialect import AnswerInfo, Dialect, DialectContext
from dragoman.protocols.messages.decode import (
    CountTokensRequest,
    MessagesRequest,
    decode_count_request,
    decode_request,
)
from dragoman.protocols.messages.encode import (
    MessageResponse,
    MessagesEncoder,
    TokenCount,
    encode_event,
    make_id,
)
from dragoman.protocols.messages.errors import encode_error, get_error_status
from dragoman.protocols.messages.rate_limit_headers import encode_rate_limits
from dragoman.protocols.shared.signer import ContentSigner
from dragoman.types import Request

__all__ = [
    "DIALECT",
    "CountTokensRequest",
    "MessageResponse",
    "MessagesRequest",
    "TokenCount",
    "decode_count",
    "encode_error",
    "get_error_status",
]


def _get_signer(context: DialectContext) -> ContentSigner:
    if context.signer is None:
        raise ValueError("The Messages API needs a signer.")
    return context.signer


def _decode(body: bytes, context: DialectContext) -> Request:
    return decode_request(body, context.strict, _get_signer(context))


def decode_count(body: bytes, context: DialectContext) -> Request:
    """Decode a request whose prompt tokens are to be counted."""
    return decode_count_request(body, context.strict, _get_signer(context))


def _make_encoder(request: Request, answer: AnswerInfo, context: DialectContext) -> MessagesEncoder:
    def encode_error_with_id(error: DragomanError) -> bytes:
        return encode_error(error, context.request_id)

    return MessagesEncoder(
        request,
        answer.model,
        answer.prompt_tokens,
        _get_signer(context),
        encode_error_with_id,
        answer.make_report or dict,
    )


DIALECT: Dialect[Request] = Dialect(
    name="messages",
    decode=_decode,
    make_encoder=_make_encoder,
    make_response_id=make_id,
    encode_error=encode_error,
    get_error_status=get_error_status,
    encode_rate_limits=encode_rate_limits,
    uses_signer=True,
    keep_alive_frame=encode_event("ping"),
    client_header=b"anthropic-version",
    request_id_headers=(b"x-request-id", b"request-id"),
)
