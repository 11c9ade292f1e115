"""How a TCP connection ends: after a last response, or because the client stopped reading.

Closing a socket while bytes from the client are unread makes the kernel reset the connection, and
the reset discards the response that the client has not read yet. `LingeringClose` therefore closes
the sending half, reads and discards what still arrives, and closes the socket when the client
closes its side or a limit is reached. `StallTimer` drops a client that does not read what was
written. `encode_rejection` encodes the response to input that never became a complete request.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from dragoman.errors import DragomanError
from dragoman.http.asgi import DEFAULT_DIALECT, make_request_id
from dragoman.protocols.dialect import Dialect

PHRASES = {status.value: status.phrase for status in HTTPStatus}
LINGER_SECONDS = 2.0
LINGER_BYTES = 8 * 1024 * 1024


def encode_rejection(error: DragomanError, dialect: Dialect[object] = DEFAULT_DIALECT) -> bytes:
    """Encode an error response to an incomplete or invalid request; it ends the connection."""
    body = dialect.encode_error(error, make_request_id())
    status = dialect.get_error_status(error)
    fields = {
        "content-type": "application/json",
        "content-length": len(body),
        "connection": "close",
    }
    if error.retry_after is not None:
        fields["retry-after"] = max(1, round(error.retry_after))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\n{lines}\r\n".encode() + body


class LingeringClose:
    """Closes one connection in a way that lets the client read the last response."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._discarded = 0
        self._timer: asyncio.TimerHandle | None = None
        self.is_active = False

    def start(self) -> None:
        """Close the sending half once all is written; nothing may be written from now on."""
        transport = self._transport
        if self.is_active or transport.is_closing():
            return
        self.is_active = True
        if not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        transport.resume_reading()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LINGER_SECONDS, transport.close)

    def discard(self, data: bytes) -> None:
        """Count bytes that arrive after the response and are not read."""
        self._discarded += len(data)
        if self._discarded > LINGER_BYTES:
            self._transport.close()

    def stop(self) -> None:
        """Stop the timer: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class StallTimer:
    """Drops a client that reads nothing for too long although there is data for it."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        self._transport = transport
        self._seconds = seconds
        self._unread = 0  # bytes that the client has not read yet
        self._timer: asyncio.TimerHandle | None = None

    def restart(self) -> None:
        """Start measuring from now on, whatever was unread before."""
        if self._timer is not None:
            self.stop()
        self._unread = self._transport.get_write_buffer_size()
        if self._unread:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        unread, before = self._transport.get_write_buffer_size(), self._unread
        if unread and unread >= before:
            self._transport.abort()
        else:
            self.restart()

    def on_buffer_drained(self, more_follows: bool) -> None:
        """The client has read nearly everything.

        If more follows, the next pause of writing restarts the timer.
        """
        if more_follows:
            self.stop()
        else:
            self.restart()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
