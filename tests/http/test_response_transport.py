"""What is written to a connection, and in how many system calls."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.http.network.response_transport import CycleTransport, DirectWriter, HeldWrites

HEADERS = [(b"content-type", b"text/event-stream")]


class RecordingTransport:
    """Records each system call."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.calls.append(bytes(data))

    def writelines(self, data: list[bytes]) -> None:
        self.calls.append(b"".join(data))


class FakeConnection:
    is_closing = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def close(self) -> None: ...


def make_writer(**fields: Any) -> tuple[DirectWriter, RecordingTransport, SimpleNamespace]:
    inner = RecordingTransport()
    cycle = SimpleNamespace(
        flow=SimpleNamespace(write_paused=False),
        default_headers=[(b"server", b"a")],
        disconnected=False,
        response_started=False,
        response_complete=False,
        chunked_encoding=None,
        access_log=False,
        keep_alive=True,
        waiting_for_100_continue=False,
        message_event=asyncio.Event(),
        on_response=lambda: None,
    )
    vars(cycle).update(fields)
    transport = CycleTransport(inner, FakeConnection())  # type: ignore[arg-type]
    return DirectWriter(cycle, transport), inner, cycle  # type: ignore[arg-type]


def test_a_short_answer_takes_one_system_call() -> None:
    async def scenario() -> None:
        writer, inner, cycle = make_writer()
        with HeldWrites(writer):
            assert writer.start(200, HEADERS)
            assert writer.write([b"one"])
        assert inner.calls == []
        await asyncio.sleep(0)  # the reader of the answer wakes up
        with writer:
            assert writer.end([b"two"])
        head = b"HTTP/1.1 200 OK\r\nserver: a\r\ncontent-type: text/event-stream\r\n"
        body = b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        assert inner.calls == [head + body]
        assert cycle.response_complete
        await asyncio.sleep(0.01)
        assert len(inner.calls) == 1

    asyncio.run(scenario())


def test_what_is_held_is_written_soon_and_with_what_follows() -> None:
    async def scenario() -> None:
        writer, inner, _ = make_writer(chunked_encoding=True)
        with HeldWrites(writer):
            writer.write([b"one"])
        writer.write([b"two"])
        writer.write([b"three"])
        assert inner.calls == [b"3\r\none\r\n3\r\ntwo\r\n", b"5\r\nthree\r\n"]
        with HeldWrites(writer):
            writer.write([b"four"])
        await asyncio.sleep(0.01)
        assert inner.calls[2:] == [b"4\r\nfour\r\n"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "fields",
    [{"disconnected": True}, {"chunked_encoding": False}, {"response_started": True}],
)
def test_other_responses_are_left_to_the_server(fields: dict[str, bool]) -> None:
    writer, inner, _ = make_writer(**fields)
    assert not writer.start(200, HEADERS)
    assert inner.calls == []


def test_a_header_cannot_contain_a_line_break() -> None:
    writer, inner, _ = make_writer()
    assert not writer.start(200, [(b"x-a", b"b\r\nx-c: d")])
    assert inner.calls == []
