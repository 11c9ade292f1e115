"""One request and its response, whatever carries them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from dragoman.errors import DragomanError


class RequestFailed(DragomanError):
    """The server answered a command's request with an error, or did not answer."""

    def __init__(
        self, message: str, status: int = 0, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.http_status = status  # 0: there was no response


class ClientResponse(Protocol):
    """A response whose body is read as it arrives. Closing it cancels the request."""

    status: int
    headers: list[tuple[str, str]]  # names in lower case

    def read(self) -> bytes:
        """Return the whole body."""
        ...

    def read_lines(self) -> Iterator[bytes]:
        """Yield the lines of the body as they arrive, without their newlines."""
        ...

    def close(self) -> None: ...


class ClientTransport(Protocol):
    """Sends requests to one server."""

    address: str  # where the server is, for messages

    def send(self, method: str, path: str, body: bytes | None = None) -> ClientResponse:
        """Send a request and return its response once the headers have arrived."""
        ...

    def close(self) -> None: ...


def get_header(response: ClientResponse, name: str) -> str | None:
    return next((value for key, value in response.headers if key == name), None)


def split_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Cut a body that arrives in chunks into lines."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest
