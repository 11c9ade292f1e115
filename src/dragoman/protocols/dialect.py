"""The type of every wire API.

A `Dialect` is all that the HTTP layer knows about a wire API: how to decode a request body, how to
encode a response and an error, and what a stream looks like on the wire. The HTTP layer treats all
of them alike. A new wire API is a package that exports a `Dialect` and a file of routes that use
it.

`decode` and `make_encoder` get a `DialectContext`, which may differ from request to request. Wire
APIs that do not need it ignore it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Generic, NoReturn, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from dragoman.errors import DragomanError
from dragoman.events import AnswerTimes, Completion, Delta, Usage
from dragoman.protocols.shared.rate_limit_headers import encode_rate_limits
from dragoman.protocols.shared.report import MakeReport
from dragoman.protocols.shared.signer import ContentSigner
from dragoman.types import Request
from dragoman.types.limits import RateLimitStatus

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
SSE = b"text/event-stream; charset=utf-8"
SSE_COMMENT = b": keep-alive\n\n"


class Encoder(Protocol):
    """Encodes one answer, as frames of a stream or as one body."""

    def start(self) -> list[bytes]:
        """Return frames that come before anything is generated."""
        ...

    def encode_delta(self, delta: Delta) -> list[bytes]:
        """Return frames for one delta."""
        ...

    def end(self, usage: Usage) -> list[bytes]:
        """Return frames that come after the last delta."""
        ...

    def fail(self, error: DragomanError) -> list[bytes]:
        """Return frames that end a stream after an error."""
        ...

    def encode_whole(self, completion: Completion) -> bytes:
        """Return the answer as one body."""
        ...


class DialectContext(Struct, frozen=True, kw_only=True):
    """Information about a request that decoding and encoding may need."""

    strict: bool = False  # reject unknown fields
    request_id: str = ""
    signer: ContentSigner | None = None  # only where the dialect `uses_signer`


class AnswerInfo(Struct, frozen=True):
    """What is known about an answer before its first token."""

    model: str
    choices: int
    prompt_tokens: int
    make_report: MakeReport | None = None  # what the client wants to know about its request
    fingerprint: str = "fp_0"  # of the model and how it is served
    measure: Callable[[], AnswerTimes] = AnswerTimes  # called when the answer is complete
    prompt_ids: Sequence[list[int]] = ()  # of each prompt, if the client wants token ids


Decode: TypeAlias = Callable[[bytes, DialectContext], T]


def _reject_body(body: bytes, context: DialectContext) -> NoReturn:
    raise NotImplementedError("This wire API has no request body.")


def _reject_encoding(request: Request, answer: AnswerInfo, context: DialectContext) -> NoReturn:
    raise NotImplementedError("This wire API does not encode generated answers.")


def _get_own_status(error: DragomanError) -> int:
    return error.status


def _make_plain_id() -> str:
    return secrets.token_hex(16)


class Dialect(Struct, Generic[T_co], frozen=True, kw_only=True):
    """One wire API. `decode` turns its request body into a `T_co`."""

    name: str
    encode_error: Callable[[DragomanError, str], bytes]  # with the request id
    get_error_status: Callable[[DragomanError], int] = _get_own_status
    encode_rate_limits: Callable[[RateLimitStatus], list[tuple[bytes, bytes]]] = encode_rate_limits
    decode: Callable[[bytes, DialectContext], T_co] = _reject_body
    make_encoder: Callable[[Request, AnswerInfo, DialectContext], Encoder] = _reject_encoding
    make_response_id: Callable[[], str] = _make_plain_id
    uses_signer: bool = False
    stream_content_type: bytes = SSE
    keep_alive_frame: bytes = SSE_COMMENT  # sent when a stream is silent for long, unless empty
    # A header that only clients of this API send. It selects the dialect where several APIs share
    # a path.
    client_header: bytes | None = None
    accepts_form_type: bool = False  # JSON may be sent as `curl -d` does, as if it were a form
    request_id_headers: tuple[bytes, ...] = (b"x-request-id",)


def pass_strict(decode: Callable[[bytes, bool], T]) -> Decode[T]:
    """Adapt a function that takes `strict` instead of a context, for `Dialect.decode`."""

    def decode_with_context(body: bytes, context: DialectContext) -> T:
        return decode(body, context.strict)

    return decode_with_context
