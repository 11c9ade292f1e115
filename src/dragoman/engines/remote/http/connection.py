"""One connection to an upstream server, used for one request after the other.

The connection is an asyncio protocol around `httptools`, not a stream: what arrives is handed to
the `ResponseReceiver` of the request in the same call, without a task to wake for each chunk.
Closing the connection is how a request is cancelled; servers notice that at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import httptools

from dragoman.engines.remote.failures import ConnectionFailure

MAX_HEADER_BYTES = 1 << 16
INTERIM_STATUSES = range(100, 200)


class ResponseReceiver(Protocol):
    """Takes one response, part by part. No method may raise.

    Data that follows the end, a failure or `abort` is dropped by the receiver: the parser calls it
    directly, since a call for each token is one too many.
    """

    def take_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Take the status and the headers, with names in lower case."""

    def take_data(self, data: bytes) -> None:
        """Take a part of the body."""

    def end(self) -> None:
        """The whole response has arrived."""

    def fail(self, failure: ConnectionFailure) -> None:
        """The connection is gone before that."""


class UpstreamConnection(asyncio.Protocol):
    """A connection that runs one request at a time."""

    def __init__(self, release: Callable[[UpstreamConnection], None]) -> None:
        self.is_reused = False  # it has answered a request before
        self.has_answered = False  # a byte of the present response has arrived
        self.idle_since = 0.0
        self._release = release  # called when a response is over, and when the connection is lost
        self._transport: asyncio.Transport | None = None
        self._receiver: ResponseReceiver | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self.on_body: Callable[[bytes], None] | None = None  # called by the parser
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._has_head = False
        self._is_interim = False  # the present head comes before that of the response (1xx)
        self._is_paused = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def is_answering(self, receiver: ResponseReceiver) -> bool:
        """Whether the present response is this receiver's; the next one may be another's."""
        return self._receiver is receiver

    def send(self, request: bytes, receiver: ResponseReceiver) -> None:
        """Send a request; the receiver takes its response."""
        self.has_answered = False
        if self._transport is None or not self.is_open:  # lost since it was taken from the pool
            receiver.fail(ConnectionFailure("closed", "the connection is closed"))
            return
        self._receiver = receiver
        self.on_body = receiver.take_data
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._header_bytes = {}, 0
        self._has_head = self._is_interim = False
        self._transport.write(request)

    def abort(self) -> None:
        """Close at once. The receiver of a running request is not called any more."""
        self._forget_request()
        if self._transport is not None:
            self._transport.abort()

    def _forget_request(self) -> None:
        """Hold nothing of a request that is over: an idle connection may live for long."""
        self._receiver = self._parser = self.on_body = None

    def detach(self, receiver: ResponseReceiver) -> None:
        """Give the rest of the response to another receiver."""
        if self._receiver is not None:
            self._receiver = receiver

    def pause(self) -> None:
        """Read no more for now, so that the server has to wait."""
        if not self._is_paused and self._transport is not None and self.is_open:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            if self.is_open:
                self._transport.resume_reading()

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._receiver is None or self._parser is None:
            self.abort()  # nothing was asked
            return
        self.has_answered = True
        try:
            self._parser.feed_data(data)
            if not self._has_head:
                self._count_head(len(data))
        except httptools.HttpParserError as error:
            self._fail(ConnectionFailure("invalid", f"no valid HTTP response: {error}"))

    def _count_head(self, size: int) -> None:
        """Give up on headers that do not end."""
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            self._fail(ConnectionFailure("invalid", "the headers of the response are too long"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._has_open_end() and error is None:
            self.on_message_complete()
        self._fail(ConnectionFailure("closed", f"the connection was closed: {error or 'no error'}"))
        self._transport = None
        self._release(self)

    def _has_open_end(self) -> bool:
        """Whether the response ends with the connection: it has neither a length nor chunks."""
        is_framed = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        return self._has_head and not is_framed

    def _fail(self, failure: ConnectionFailure) -> None:
        receiver = self._receiver
        self.abort()
        if receiver is not None:
            receiver.fail(failure)

    # called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # what follows the body is not used
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._receiver is None or self._parser is None:
            return
        status = self._parser.get_status_code()
        self._is_interim = status in INTERIM_STATUSES
        if self._is_interim:
            self._headers = {}
            return
        self._has_head = True
        self._receiver.take_head(status, self._headers)

    def on_message_complete(self) -> None:
        receiver, parser = self._receiver, self._parser
        if receiver is None or parser is None or self._is_interim:
            return
        self._forget_request()
        self.is_reused = True
        self.resume()
        if not parser.should_keep_alive():
            self.abort()
        receiver.end()
        if self.is_open:
            self._release(self)
