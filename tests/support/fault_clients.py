"""Clients that fail: they reset, vanish, stall or drip, on real sockets.

`start_request` sends a request as bytes, so that a test decides what happens to its connection.
`read_stream` reads a stream to its end and checks it: complete events, one end, no error after it.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from tests.support.hostile_samples import MODEL, SAMPLES

MESSAGE = "tell me"
# The routes that stream, and what begins an event with text of the answer.
STREAMS: dict[str, bytes] = {
    "/v1/chat/completions": b'"content":"',
    "/v1/completions": b'"text":"',
    "/v1/messages": b"content_block_delta",
    "/v1/responses": b"response.output_text.delta",
}


def make_body(path: str, text: str = MESSAGE, **fields: Any) -> dict[str, Any]:
    """Make the body of a request that generates, in the wire API of its path."""
    prompt: dict[str, Any] = {"prompt": text}
    if path == "/v1/responses":
        prompt = {"input": text, "store": False}
    elif "prompt" not in SAMPLES[path]:
        prompt = {"messages": [{"role": "user", "content": text}]}
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    return {"model": MODEL, limit: 100_000, **prompt, **fields}


def encode_request(path: str, body: dict[str, Any], *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def connect(port: int, buffer: int | None = None) -> socket.socket:
    """Connect; a small receive `buffer` makes the server notice a client that does not read."""
    connection = socket.socket()
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", port))
    return connection


@contextmanager
def start_request(
    port: int, path: str, body: dict[str, Any], *headers: str
) -> Iterator[socket.socket]:
    with connect(port) as connection:
        connection.sendall(encode_request(path, body, *headers))
        yield connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    received = b""
    while mark not in received:
        data = connection.recv(65536)
        assert data, received
        received += data
    return received


def read_rest(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


def reset(connection: socket.socket) -> None:
    """Close with RST, as a system does whose program was killed with unread data."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def close(connection: socket.socket) -> None:
    """Close with FIN."""
    connection.close()


ENDINGS: dict[str, Callable[[socket.socket], None]] = {"RST": reset, "FIN": close}


class StreamEnd(NamedTuple):
    """What a stream contained: its text, and the code of the error that ended it."""

    text: str
    error: str | None
    is_complete: bool  # it has the last event that its wire API ends a stream with


def read_stream(path: str, text: str) -> StreamEnd:
    """Read the events of a stream, whatever its wire API is; each must be well-formed."""
    frames = text.split("\n\n")
    assert frames.pop() == "", text[-200:]
    events = [parse_frame(frame) for frame in frames if not frame.startswith(":")]
    errors = [event for event in events if find_error(event) is not None]
    assert len(errors) <= 1, errors
    last = events[-1]
    is_complete = last == "[DONE]"
    if path == "/v1/messages":
        is_complete = bool(errors) or last["type"] == "message_stop"
    elif path == "/v1/responses":
        kinds = {"response.completed", "response.incomplete", "response.failed", "error"}
        is_complete = last["type"] in kinds
    pieces = "".join(find_text(event) for event in events)
    return StreamEnd(pieces, find_error(errors[0]) if errors else None, is_complete)


def parse_frame(frame: str) -> Any:
    lines = dict(line.split(": ", 1) for line in frame.split("\n"))
    assert set(lines) <= {"event", "data", "id"}, frame
    data = lines["data"]
    event = data if data == "[DONE]" else json.loads(data)
    if "event" in lines and isinstance(event, dict):
        assert event.get("type") == lines["event"], frame
    return event


def find_error(event: Any) -> str | None:
    """Return the code of the error in an event."""
    if not isinstance(event, dict):
        return None
    error = event.get("error") or (event.get("response") or {}).get("error")
    if event.get("type") == "error":
        error = event.get("error") or event
    if not error:
        return None
    return str(error.get("code") or error["type"])


def find_text(event: Any) -> str:
    """Return the text of the answer in an event, whatever its wire API is."""
    if not isinstance(event, dict):
        return ""
    match event:
        case {"choices": [{"delta": {"content": str(text)}}, *_]} | {
            "choices": [{"text": str(text)}, *_]
        }:
            return text
        case {"type": "content_block_delta", "delta": {"text": str(text)}}:
            return text
        case {"type": "response.output_text.delta", "delta": str(text)}:
            return text
    return ""


@contextmanager
def hold_streams(url: str, count: int, text: str) -> Iterator[list[Future[StreamEnd]]]:
    """Open streams of all wire APIs; yield a future for the end of each, once all have begun."""
    paths = [list(STREAMS)[number % len(STREAMS)] for number in range(count)]
    all_began = threading.Barrier(count + 1, timeout=60)

    def hold(path: str) -> StreamEnd:
        body = make_body(path, text, stream=True)
        with httpx.stream("POST", url + path, json=body, timeout=60) as response:
            assert response.status_code == 200
            received = ""
            pieces = response.iter_text()
            while STREAMS[path].decode() not in received:
                received += next(pieces)
            all_began.wait()
            return read_stream(path, received + "".join(pieces))

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(hold, path) for path in paths]
        all_began.wait()
        yield futures
