"""WebSockets: handshakes, invalid frames, slow clients, shutdown; nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import socket as tcp
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from dragoman.errors import BadRequest
from dragoman.http.app import App
from dragoman.http.asgi import WEBSOCKET, RequestContext
from dragoman.http.connection import Connection
from dragoman.http.router import Route
from dragoman.http.server import make_app
from dragoman.http.websocket import WebSocketSession
from dragoman.http.websocket_connection import WebSocketConnection
from dragoman.runtime import build_engine_runtime
from dragoman.testing import ScriptedEngine
from tests.support.serving import RunningServer, make_scripted_app, poll_until, run_app

pytestmark = pytest.mark.slow

PATH = "/v1/talk"
Serve = Callable[[WebSocketSession], Awaitable[None]]


async def echo(session: WebSocketSession) -> None:
    while True:
        await session.send(await session.receive())


async def send_forever(session: WebSocketSession) -> None:
    """Send without end after the first message."""
    await session.receive()
    while True:
        await session.send(b"x" * 10_000)


def make_app_with_websocket(serve: Serve = echo, **options: Any) -> App:
    """An app with a WebSocket at a path, and a POST route at the same path."""
    app = make_scripted_app(**options)

    async def handle(request: RequestContext) -> None:
        async with app.websockets.open(request) as session:
            await session.accept()
            await serve(session)

    async def serve_plain(request: RequestContext) -> None:
        await request.send_response(200, b"plain")

    app.router.add(Route(path=PATH, method=WEBSOCKET, handler=handle, summary="Talk."))
    app.router.add(Route(path=PATH, method="POST", handler=serve_plain, summary="Respond."))
    return app


@contextmanager
def run_websocket(serve: Serve = echo, **options: Any) -> Iterator[RunningServer]:
    with run_app(make_app_with_websocket(serve, **options)) as server:
        yield server


def connect_to(server: RunningServer, path: str = PATH, **fields: Any) -> connect:
    fields = {"compression": None, "max_size": None, "proxy": None} | fields
    return connect(f"ws://127.0.0.1:{server.port}{path}", **fields)


def count_requests(app: App, status: int) -> int:
    return app.metrics.requests[PATH, status, ""]


def is_idle(server: RunningServer) -> bool:
    state = server._server.server_state
    return not (state.connections or state.tasks or len(server.app.websockets))


def list_connections(server: RunningServer) -> list[WebSocketConnection]:
    connections: list[object] = list(server._server.server_state.connections)
    return [connection for connection in connections if isinstance(connection, WebSocketConnection)]


@pytest.fixture(scope="module", name="server")
def _run_server() -> Iterator[RunningServer]:
    with run_websocket() as server:
        yield server


TEXTS = ["", "hi", "ü😀\0", "x" * 125, "x" * 126, "x" * 70_000, "x" * 3_000_000]


@pytest.mark.parametrize("path", [PATH, "/talk", f"{PATH}?beta=true"])
def test_messages_are_echoed(server: RunningServer, path: str) -> None:
    async def use_client() -> None:
        async with connect_to(server, path, additional_headers={"x-request-id": "me"}) as client:
            assert client.response is not None
            assert client.response.status_code == 101
            assert client.response.headers["x-request-id"] == "me"
            for text in TEXTS:
                await client.send(text)
                assert await client.recv() == text
            await client.send(["in ", "three", " frames"])
            assert await client.recv() == "in three frames"
            await (await client.ping())

    before = count_requests(server.app, 101)
    asyncio.run(use_client())
    poll_until(lambda: count_requests(server.app, 101) == before + 1)


def test_many_messages_stay_in_order(server: RunningServer) -> None:
    async def use_client() -> None:
        async with connect_to(server) as client:
            texts = [f"{i} " + "x" * (i % 700) for i in range(2000)]
            sending = asyncio.gather(*(client.send(text) for text in texts))
            assert [await client.recv() for _ in texts] == texts
            await sending

    asyncio.run(use_client())


def test_compression_and_subprotocols_are_declined(server: RunningServer) -> None:
    async def use_client() -> None:
        async with connect_to(server, compression="deflate", subprotocols=["a", "b"]) as client:
            assert client.response is not None
            assert "sec-websocket-extensions" not in client.response.headers
            assert client.subprotocol is None
            await client.send("x" * 1000)
            assert await client.recv() == "x" * 1000

    asyncio.run(use_client())


KEYS: dict[str, Any] = {"api_key": ("secret",)}
LOCAL = "http://localhost:3000"
REJECTED: list[tuple[dict[str, Any], dict[str, str], int, str]] = [
    (KEYS, {}, 401, "invalid_api_key"),
    (KEYS, {"authorization": "Bearer wrong"}, 401, "invalid_api_key"),
    ({}, {"host": "second"}, 400, "bad_host"),
    ({}, {"origin": "https://evil.example"}, 403, "forbidden"),
    ({}, {"origin": "null"}, 403, "forbidden"),
]


async def read_rejection(client: connect) -> Any:
    with pytest.raises(InvalidStatus) as caught:
        await client
    response = caught.value.response
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    return response.status_code, json.loads(response.body)["error"]["code"]


@pytest.mark.parametrize(("options", "headers", "status", "code"), REJECTED)
def test_rejected_handshake_gets_the_same_error_as_any_request(
    options: dict[str, Any], headers: dict[str, str], status: int, code: str
) -> None:
    with run_websocket(**options) as server:
        fields: dict[str, Any] = {"additional_headers": headers}
        assert asyncio.run(read_rejection(connect_to(server, **fields))) == (status, code)
        poll_until(lambda: is_idle(server))
        assert server.app.metrics.errors[code] == 1


@pytest.mark.parametrize("headers", [{"authorization": "Bearer secret"}, {"x-api-key": "secret"}])
def test_valid_key_is_accepted(headers: dict[str, str]) -> None:
    async def use_client() -> None:
        async with connect_to(server, additional_headers=headers, origin=LOCAL) as client:
            await client.send("hi")
            assert await client.recv() == "hi"

    with run_websocket(**KEYS) as server:
        asyncio.run(use_client())


async def collect_messages(app: App, headers: list[Any], extensions: dict[str, Any]) -> list[Any]:
    """What the app sends to a handshake whose client disconnects at once."""
    scope = {"type": "websocket", "path": PATH, "headers": headers, "extensions": extensions}
    incoming: list[Any] = [{"type": "websocket.connect"}, {"type": "websocket.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize(
    ("origin", "status"), [("https://evil.example", 403), ("https://server.example", None)]
)
def test_public_server_rejects_pages_of_other_origins(origin: str, status: int | None) -> None:
    app = make_app(
        build_engine_runtime(ScriptedEngine("x"), {"port": 0, "name": "scripted"}), local=False
    )
    inner = make_app_with_websocket()
    for route in inner.router.routes:
        app.router.add(route)
    headers = [(b"host", b"server.example:8000"), (b"origin", origin.encode())]
    sent = asyncio.run(collect_messages(app, headers, {"websocket.http.response": {}}))
    assert sent[0].get("status") == status


def test_upgrade_at_a_path_without_websocket_is_served_as_http(server: RunningServer) -> None:
    async def get_status(path: str) -> int:
        with pytest.raises(InvalidStatus) as caught:
            await connect_to(server, path)
        return int(caught.value.response.status_code)

    assert asyncio.run(get_status("/health/live")) == 200
    assert asyncio.run(get_status("/v1/embeddings")) == 405
    assert asyncio.run(get_status("/nowhere")) == 404


HEAD = b"%b /v1/talk HTTP/1.1\r\nhost: localhost\r\nconnection: %b\r\nupgrade: %b\r\n"
HANDSHAKE = HEAD % (b"GET", b"upgrade", b"websocket") + b"sec-websocket-version: 13\r\n"
KEY = b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
VALID = HANDSHAKE + KEY + b"\r\n"


def read_status_line(server: RunningServer, data: bytes) -> bytes:
    with tcp.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(data)
        return client.recv(65536).partition(b"\r\n")[0]


HANDSHAKES: list[tuple[bytes, int]] = [
    (VALID, 101),
    (VALID.replace(b"/v1/talk", b"/v1/t%61lk?x=%zz&&"), 101),
    (VALID.replace(b"upgrade\r", b"keep-alive, Upgrade\r"), 101),
    (VALID.replace(b"websocket\r", b"WebSocket\r"), 101),
    (VALID.replace(b"\r\n\r\n", b"\r\nx: " + b"y" * 20_000 + b"\r\n\r\n"), 101),
    (HANDSHAKE + b"\r\n", 405),
    (HANDSHAKE + b"sec-websocket-key: short\r\n\r\n", 405),
    (HANDSHAKE + KEY + KEY + b"\r\n", 405),
    (VALID.replace(b": 13", b": 12"), 405),
    (VALID.replace(b"websocket\r", b"h2c\r"), 405),
    (VALID.replace(b"GET", b"POST"), 200),
    (HANDSHAKE + KEY + b"content-length: 3\r\n\r\nabc", 405),
    (HANDSHAKE + KEY + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 405),
    (VALID.replace(b"HTTP/1.1", b"HTTP/1.0"), 405),
    (VALID.replace(b"localhost", b"evil.example"), 403),
    (VALID.replace(b"localhost", b"a/b"), 400),
    (VALID.replace(b"/v1/talk", b"/v1/t\xe4lk"), 400),
    (VALID.replace(b"/v1/talk", b"talk"), 400),
]


@pytest.mark.parametrize(("data", "status"), HANDSHAKES)
def test_only_a_valid_handshake_is_upgraded(
    server: RunningServer, data: bytes, status: int
) -> None:
    assert read_status_line(server, data).startswith(b"HTTP/1.1 %d " % status)


def test_connection_can_serve_requests_before_the_upgrade(server: RunningServer) -> None:
    get = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with tcp.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(get)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        client.sendall(VALID + make_frame(b"early"))
        assert read_until(client, b"early").startswith(b"HTTP/1.1 101 ")
    with tcp.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(get + VALID)  # pipelined: ignored, and the connection closed
        assert b" 101 " not in read_until(client, None)


def make_frame(data: bytes, opcode: Opcode = Opcode.TEXT, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def read_until(client: tcp.socket, end: bytes | None) -> bytes:
    """What the server sends up to this text, or until it closes."""
    received = b""
    try:
        while end is None or end not in received:
            data = client.recv(65536)
            if not data:
                break
            received += data
    except ConnectionError:
        pass
    return received


@contextmanager
def open_websocket(server: RunningServer) -> Iterator[tcp.socket]:
    with tcp.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(VALID)
        assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 101 ")
        yield client


CONT = Opcode.CONT
LIMIT = 1000
FATAL_FRAMES: list[tuple[bytes, int]] = [
    (make_frame(b"x" * 1001), 1009),
    (make_frame(b"x" * 600, fin=False) + make_frame(b"x" * 600, CONT), 1009),
    (b"\x81\xff" + b"\x7f" + b"\xff" * 7 + b"mask", 1009),
    (make_frame(b"abc", Opcode.BINARY), 1003),
    (make_frame(b"ab", Opcode.BINARY, fin=False) + make_frame(b"c", CONT), 1003),
    (make_frame(b"\xff\xfe"), 1007),
    (make_frame(b"\xed\xa0\x80"), 1007),
    (Frame(Opcode.TEXT, b"not masked").serialize(mask=False), 1002),
    (make_frame(b"x", CONT), 1002),
    (make_frame(b"x", fin=False) + make_frame(b"y"), 1002),
    (b"\xc1" + make_frame(b"compressed?")[1:], 1002),
    (b"\x83" + make_frame(b"unknown")[1:], 1002),
    (b"\x09" + make_frame(b"", Opcode.PING)[1:], 1002),
    (b"GET / HTTP/1.1\r\n\r\n", 1002),
    (make_frame(b"x" * 10)[:8], 1008),  # and nothing more
    (make_frame(b"a", fin=False) + make_frame(b"", CONT, fin=False) * 5000, 1008),
    (make_frame((1000).to_bytes(2, "big"), Opcode.CLOSE), 1000),
    (make_frame((4321).to_bytes(2, "big") + b"why", Opcode.CLOSE), 4321),
    (make_frame((1).to_bytes(2, "big"), Opcode.CLOSE), 1002),
]


@pytest.fixture(scope="module")
def strict_server() -> Iterator[RunningServer]:
    with run_websocket(body_limit=LIMIT, receive_timeout=0.3) as server:
        yield server


@pytest.mark.parametrize(
    ("data", "code"), FATAL_FRAMES, ids=[f"{i}-{code}" for i, (_, code) in enumerate(FATAL_FRAMES)]
)
def test_invalid_frames_close_with_a_code(
    strict_server: RunningServer, data: bytes, code: int
) -> None:
    with open_websocket(strict_server) as client:
        client.sendall(make_frame(b"x" * LIMIT))
        read_until(client, b"x" * LIMIT)
        client.sendall(data)
        received = read_until(client, code.to_bytes(2, "big"))
    assert received[:1] == b"\x88"
    assert int.from_bytes(received[2:4], "big") == code
    poll_until(lambda: is_idle(strict_server))


def test_close_code_reaches_a_client_that_keeps_sending(strict_server: RunningServer) -> None:
    with open_websocket(strict_server) as client:
        client.sendall(make_frame(b"x" * (LIMIT + 1)) + b"y" * 8_000_000)
        received = b""
        while data := client.recv(65536):  # a reset fails the test
            received += data
    assert received[:1] == b"\x88"
    assert int.from_bytes(received[2:4], "big") == 1009
    poll_until(lambda: is_idle(strict_server))


def test_slow_message_closes_the_connection(strict_server: RunningServer) -> None:
    with open_websocket(strict_server) as client:
        client.sendall(b"\x81")
        assert b"\x88" in read_until(client, None)
    poll_until(lambda: is_idle(strict_server))


def test_disconnect_without_close_frame_is_noticed() -> None:
    started = asyncio.Event()

    async def serve(session: WebSocketSession) -> None:
        await session.receive()
        started.set()
        await session.wait_closed()

    with run_websocket(serve) as server:
        with open_websocket(server) as client:
            client.sendall(make_frame(b"work"))
            server.run_coroutine(asyncio.wait_for(started.wait(), 20))
        poll_until(lambda: is_idle(server))
        assert server.app.metrics.errors == {}  # the handler noticed and ended
    with run_websocket() as server:
        with open_websocket(server) as client:
            linger = (1).to_bytes(4, "little") + bytes(4)
            client.setsockopt(tcp.SOL_SOCKET, tcp.SO_LINGER, linger)
        poll_until(lambda: is_idle(server))
        assert server.app.metrics.errors == {"client_disconnected": 1}
        assert count_requests(server.app, 499) == 1


def test_regular_close_is_not_an_error() -> None:
    with run_websocket() as server:
        for close_frame in (
            make_frame(b"", Opcode.CLOSE),
            make_frame((1001).to_bytes(2, "big"), Opcode.CLOSE),
        ):
            with open_websocket(server) as client:
                client.sendall(close_frame)
                assert read_until(client, None)[:1] == b"\x88"
        poll_until(lambda: count_requests(server.app, 101) == 2)
        assert server.app.metrics.succeeded == 2
        assert not server.app.metrics.errors


def test_slow_client_slows_the_sender_and_gets_everything() -> None:
    sent_count = 0

    async def send_much(session: WebSocketSession) -> None:
        nonlocal sent_count
        await session.receive()
        for i in range(2000):
            await session.send(b"%04d" % i + b"x" * 10_000)
            sent_count += 1

    async def use_client() -> None:
        async with connect_to(server, max_queue=1) as client:
            await client.send("go")
            assert (await client.recv())[:4] == "0000"
            await asyncio.to_thread(
                poll_until,
                lambda: any(not connection.is_ready for connection in list_connections(server)),
            )
            assert sent_count < 2000
            for i in range(1, 2000):
                assert (await client.recv())[:4] == f"{i:04}"
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert client.close_code == 1000

    with run_websocket(send_much) as server:
        asyncio.run(use_client())
        poll_until(lambda: is_idle(server))


def test_client_that_reads_nothing_is_dropped() -> None:
    with run_websocket(send_forever, stall=0.2) as server, tcp.socket() as client:
        client.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(VALID + make_frame(b"go"))
        poll_until(lambda: count_requests(server.app, 499) == 1)
        poll_until(lambda: is_idle(server))


def test_unread_pongs_do_not_accumulate() -> None:
    with run_websocket(stall=0.5) as server, tcp.socket() as client:
        client.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(VALID)
        client.setblocking(False)
        pings = make_frame(b"x" * 125, Opcode.PING) * 500
        largest = 0
        while not is_idle(server) or not largest:
            try:
                client.send(pings)
            except BlockingIOError:
                pass
            except ConnectionError:
                break
            for connection in list_connections(server):
                largest = max(largest, connection.transport.get_write_buffer_size())
        assert largest < 3 * 1024 * 1024
        poll_until(lambda: is_idle(server))


def test_client_that_does_not_answer_pings_is_dropped() -> None:
    with run_websocket(ping=0.05, stall=0.2) as server, open_websocket(server) as client:
        assert read_until(client, None).startswith(make_ping())
        poll_until(lambda: is_idle(server))


def make_ping() -> bytes:
    return Frame(Opcode.PING, b"").serialize(mask=False)


def test_client_that_answers_pings_stays() -> None:
    with run_websocket(ping=0.02, stall=0.02) as server, open_websocket(server) as client:
        for _ in range(20):
            assert read_until(client, b"\x89") == make_ping()
            client.sendall(make_frame(b"", Opcode.PONG))
        client.sendall(make_frame(b"still here"))
        assert b"still here" in read_until(client, b"here")


def test_idle_session_is_closed() -> None:
    async def use_client() -> int | None:
        async with connect_to(server) as client:
            with pytest.raises(ConnectionClosed):
                await client.recv()
            return client.close_code

    with run_websocket() as server:
        server.app.websockets.idle_timeout = 0.1
        assert asyncio.run(use_client()) == 1000


HANDLER_ERRORS: list[tuple[Exception, int, str]] = [
    (BadRequest("This is wrong.", code="wrong"), 1011, "wrong"),
    (ValueError("internal detail"), 1011, "engine_error"),
]


@pytest.mark.parametrize(("failure", "code", "error_code"), HANDLER_ERRORS)
def test_failing_handler_closes_the_session(failure: Exception, code: int, error_code: str) -> None:
    async def fail(session: WebSocketSession) -> None:
        await session.receive()
        raise failure

    async def use_client() -> tuple[int | None, str | None]:
        async with connect_to(server) as client:
            await client.send("go")
            with pytest.raises(ConnectionClosed):
                await client.recv()
            return client.close_code, client.close_reason

    with run_websocket(fail) as server:
        closed, reason = asyncio.run(use_client())
        assert closed == code
        assert "internal detail" not in (reason or "")
        poll_until(lambda: is_idle(server))
        assert server.app.metrics.errors == {error_code: 1}


def test_session_receives_while_it_sends() -> None:
    async def count(session: WebSocketSession) -> None:
        """Send numbers while messages arrive."""

        async def send_numbers() -> None:
            for i in range(1000):
                await session.send(str(i).encode())

        with session.mark_busy():
            task = asyncio.create_task(send_numbers())
            while await session.receive() != b"stop":
                pass
            await task
        await session.send(b"stopped")

    async def use_client() -> None:
        async with connect_to(server) as client:
            for i in range(1000):
                await client.send("go on")
                assert await client.recv() == str(i)
            await client.send("stop")
            assert await client.recv() == "stopped"

    with run_websocket(count) as server:
        asyncio.run(use_client())


def count_tasks(server: RunningServer) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks())

    return int(server.run_coroutine(count()))


def test_a_hundred_sessions_leave_nothing_behind() -> None:
    async def run_all() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*(use_one(i) for i in range(100)))

    async def use_one(i: int) -> None:
        client = await connect_to(server)
        await client.send("hi")
        assert await client.recv() == "hi"
        if i % 3 == 0:
            await client.close()
        elif i % 3 == 1:
            client.transport.abort()
        else:
            await client.send(b"binary")
            await client.wait_closed()

    with run_websocket() as server:
        before = count_tasks(server)
        asyncio.run(run_all())
        poll_until(lambda: is_idle(server))
        poll_until(lambda: count_tasks(server) == before)
        gc.collect()
        state, sessions = server._server.server_state, server.app.websockets
        assert not [
            leftover
            for leftover in gc.get_objects()
            if (isinstance(leftover, WebSocketConnection) and leftover._state is state)
            or (isinstance(leftover, Connection) and leftover.server_state is state)
            or (isinstance(leftover, WebSocketSession) and leftover._sessions is sessions)
        ]


def test_stopping_closes_idle_sessions_at_once_and_busy_ones_when_done() -> None:
    async def serve(session: WebSocketSession) -> None:
        while True:
            await session.receive()
            await session.send(b"started")
            await finish.wait()
            await session.send(b"done")

    async def use_client() -> None:
        async with connect_to(server) as idle_client, connect_to(server) as busy_client:
            await busy_client.send("work")
            assert await busy_client.recv() == "started"
            server._server.handle_exit(15, None)
            await idle_client.wait_closed()
            assert idle_client.close_code == 1012
            assert await read_rejection(connect_to(server)) == (503, "draining")
            server.loop.call_soon_threadsafe(finish.set)
            assert await busy_client.recv() == "done"
            await busy_client.wait_closed()
            assert busy_client.close_code == 1012

    finish = asyncio.Event()
    with run_websocket(serve) as server:
        asyncio.run(use_client())
        server._thread.join(20)
        assert not server._thread.is_alive()


def test_stopping_does_not_interrupt_a_busy_session_that_receives() -> None:
    async def serve(session: WebSocketSession) -> None:
        with session.mark_busy():
            await session.send(b"started")
            assert await session.receive() == b"finish"
            await session.send(b"done")
        await session.receive()

    async def use_client() -> None:
        async with connect_to(server) as client:
            assert await client.recv() == "started"
            server._server.handle_exit(15, None)
            await asyncio.to_thread(
                poll_until, lambda: server.app.websockets.drain_seconds is not None
            )
            await client.send("finish")
            assert await client.recv() == "done"
            await client.wait_closed()
            assert client.close_code == 1012

    with run_websocket(serve) as server:
        asyncio.run(use_client())


def test_client_that_reads_nothing_does_not_delay_stopping() -> None:
    with run_websocket(send_forever, drain=0.1) as server, open_websocket(server) as client:
        client.sendall(make_frame(b"go"))
        poll_until(lambda: any(not connection.is_ready for connection in list_connections(server)))
        server._server.handle_exit(15, None)
        server._thread.join(20)
        assert not server._thread.is_alive()


def test_session_that_outlasts_the_drain_is_closed() -> None:
    async def ignore_close(session: WebSocketSession) -> None:
        await session.send(b"started")
        await session.wait_closed()

    async def use_client() -> None:
        async with connect_to(server) as client:
            assert await client.recv() == "started"
            server._server.handle_exit(15, None)
            await client.wait_closed()
            assert client.close_code == 1012

    with run_websocket(ignore_close, drain=0.1) as server:
        asyncio.run(use_client())
        server._thread.join(20)
        assert not server._thread.is_alive()


def test_every_websocket_route_needs_a_key() -> None:
    with run_websocket(**KEYS) as server:
        paths = [route.path for route in server.app.router.routes if route.method == WEBSOCKET]
        assert PATH in paths
        for path in paths:
            assert asyncio.run(read_rejection(connect_to(server, path))) == (401, "invalid_api_key")


def test_handshake_is_closed_where_the_server_cannot_send_a_response() -> None:
    sent = asyncio.run(
        collect_messages(make_app_with_websocket(**KEYS), [(b"host", b"localhost")], {})
    )
    assert [message["type"] for message in sent] == ["websocket.close"]


@asynccontextmanager
async def run_mounted(app: App) -> AsyncIterator[int]:
    """Run the app inside another one, on a plain uvicorn server."""
    outer = Starlette(routes=[Mount("/ai", app=app)])
    config = uvicorn.Config(outer, port=0, ws="websockets-sansio", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await asyncio.to_thread(poll_until, lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


def test_websocket_works_in_a_mounted_app() -> None:
    async def use_client() -> None:
        app = make_app_with_websocket(body_limit=LIMIT, **KEYS)
        key = {"x-api-key": "secret"}
        async with run_mounted(app) as port:

            def connect_with(headers: dict[str, str], path: str = PATH) -> connect:
                address = f"ws://127.0.0.1:{port}/ai{path}"
                return connect(address, additional_headers=headers, proxy=None)

            async with connect_with(key) as client:
                for text in ("hi", "", "x" * LIMIT):
                    await client.send(text)
                    assert await client.recv() == text
                await client.send("x" * (LIMIT + 1))
                await client.wait_closed()
                assert client.close_code == 1009
            assert await read_rejection(connect_with({})) == (401, "invalid_api_key")
            assert await read_rejection(connect_with(key, "/v1/models")) == (
                405,
                "method_not_allowed",
            )
            async with connect_with(key) as client:
                await client.send(b"binary")
                await client.wait_closed()
                assert client.close_code == 1003
            async with httpx.AsyncClient() as serve_plain:
                response = await serve_plain.post(f"http://127.0.0.1:{port}/ai{PATH}", headers=key)
                assert response.text == "plain"
        assert count_requests(app, 101) == 0
        assert count_requests(app, 499) == 2
        assert len(app.websockets) == 0

    asyncio.run(use_client())
