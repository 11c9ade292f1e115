"""The Messages dialect: content in blocks, thoughts with a signature.

    request    the body, into a `Request`
    blocks     the blocks of its messages, into the turns that templates know
    tools      its tools, and which of them may be called
    thoughts   signatures: a thought that comes back is shown to the model only if it is ours
    answer     a stream of events, or one message
    failures   errors, in this dialect's words
    listing    the list of models

A `Messages` is made for one exchange, because thoughts are signed for the one who is told them.
"""

from __future__ import annotations

from dragoman.errors import DragomanError
from dragoman.protocols.messages.decode import Asked, MessagesRequest, decode, to_count
from dragoman.protocols.messages.encode import Count, Message, MessagesEncoder, event
from dragoman.protocols.messages.errors import encode_error, error_status
from dragoman.protocols.shared.signer import ContentSigner
from dragoman.types import Request

__all__ = [
    "Asked",
    "Count",
    "Message",
    "Messages",
    "MessagesRequest",
    "encode_error",
    "error_status",
]


class Messages:
    """The dialect as one client speaks it; see `protocols.Dialect`."""

    ping = event("ping")

    def __init__(self, signing: ContentSigner, request_id: str | None = None) -> None:
        self._signing = signing
        self._request_id = request_id

    def decode(self, body: bytes, strict: bool) -> Request:
        return decode(body, strict, self._signing)

    def to_count(self, body: bytes, strict: bool) -> Request:
        """A request that only wants its tokens counted."""
        return to_count(body, strict, self._signing)

    def encoder(self, request: Request, model: str, choices: int, prompt: int) -> MessagesEncoder:
        return MessagesEncoder(request, model, prompt, self._signing, self.encode_error)

    def encode_error(self, failure: DragomanError) -> bytes:
        return encode_error(failure, self._request_id)
