"""Requests to a running server over HTTP.

Each request has a connection of its own, because closing the connection is what cancels a request.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

from dragoman.cli.client.transport import RequestFailed, split_lines

CONNECT_TIMEOUT = 5.0
PROBE_TIMEOUT = 2.0
CHUNK = 1 << 16


class ServerResponse:
    """A response of a running server."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._response = response
        self.status = response.status
        self.headers = [(name.lower(), value) for name, value in response.getheaders()]

    def read(self) -> bytes:
        return b"".join(self._read_chunks())

    def read_lines(self) -> Iterator[bytes]:
        return split_lines(self._read_chunks())

    def _read_chunks(self) -> Iterator[bytes]:
        try:
            while chunk := self._response.read1(CHUNK):
                yield chunk
        except (OSError, http.client.HTTPException):
            raise RequestFailed("The server closed the connection.") from None
        finally:
            self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class ServerTransport:
    """Sends requests to the server at a URL."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.address = url if "://" in url else f"http://{url}"
        self._key = key
        try:
            parts = urlsplit(self.address)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host:
            raise RequestFailed(f"{url!r} is not the URL of a server, like http://127.0.0.1:8000.")
        self._is_secure = parts.scheme == "https"
        self._host, self._port = host, port
        self._prefix = parts.path.rstrip("/")

    def is_dragoman(self) -> bool:
        """Whether the server identifies itself as ours."""
        response = self._send("GET", "/", None, PROBE_TIMEOUT)
        try:
            return bool(json.loads(response.read()).get("object") == "dragoman")
        except (ValueError, AttributeError):
            return False

    def send(self, method: str, path: str, body: bytes | None = None) -> ServerResponse:
        # An answer may take long; Ctrl-C ends the wait.
        return self._send(method, path, body, None)

    def _send(
        self, method: str, path: str, body: bytes | None, timeout: float | None
    ) -> ServerResponse:
        headers = {"accept": "application/json, text/event-stream"}
        if body is not None:
            headers["content-type"] = "application/json"
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        connection = self._connect()
        connection.sock.settimeout(timeout)
        try:
            connection.request(method, self._prefix + quote(path), body, headers)
            return ServerResponse(connection, connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            message = f"No answer from the server at {self.address}: {error}."
            raise RequestFailed(message) from None
        except BaseException:
            connection.close()
            raise

    def _connect(self) -> http.client.HTTPConnection:
        if self._is_secure:
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=CONNECT_TIMEOUT, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT)
        try:
            connection.connect()
        except OSError as error:
            reason = error.strerror or str(error)
            raise RequestFailed(f"Cannot reach a server at {self.address}: {reason}.") from None
        return connection

    def close(self) -> None:
        """Nothing stays open between requests."""
