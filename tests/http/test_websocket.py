"""WebSockets: who gets one, what may be said, and that no end leaves anything behind."""

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

PATH = "/v1/talk"
Talk = Callable[[WebSocketSession], Awaitable[None]]


async def echo(socket: WebSocketSession) -> None:
    while True:
        await socket.send(await socket.receive())


async def pour(socket: WebSocketSession) -> None:
    """Send without an end, on the first word."""
    await socket.receive()
    while True:
        await socket.send(b"x" * 10_000)


def talking(talk: Talk = echo, **options: Any) -> App:
    """An app with a WebSocket at a path, and a plain request beside it."""
    app = make_scripted_app(**options)

    async def handler(exchange: RequestContext) -> None:
        async with app.websockets.open(exchange) as socket:
            await socket.accept()
            await talk(socket)

    async def plain(exchange: RequestContext) -> None:
        await exchange.send_response(200, b"plain")

    app.router.add(Route(path=PATH, method=WEBSOCKET, handler=handler, summary="Talk."))
    app.router.add(Route(path=PATH, method="POST", handler=plain, summary="Say."))
    return app


@contextmanager
def talks(talk: Talk = echo, **options: Any) -> Iterator[RunningServer]:
    with run_app(talking(talk, **options)) as server:
        yield server


def client(server: RunningServer, path: str = PATH, **more: Any) -> connect:
    more = {"compression": None, "max_size": None, "proxy": None} | more
    return connect(f"ws://127.0.0.1:{server.port}{path}", **more)


def counted(app: App, status: int) -> int:
    return app.metrics.requests[PATH, status]


def nothing_open(server: RunningServer) -> bool:
    state = server._server.server_state
    return not (state.connections or state.tasks or len(server.app.websockets))


def upgraded(server: RunningServer) -> list[WebSocketConnection]:
    every: list[object] = list(server._server.server_state.connections)
    return [one for one in every if isinstance(one, WebSocketConnection)]


@pytest.fixture(scope="module", name="server")
def _server() -> Iterator[RunningServer]:
    with talks() as made:
        yield made


TEXTS = ["", "hi", "ü😀\0", "x" * 125, "x" * 126, "x" * 70_000, "x" * 3_000_000]


@pytest.mark.parametrize("path", [PATH, "/talk", f"{PATH}?beta=true"])
def test_texts_come_and_go(server: RunningServer, path: str) -> None:
    async def talk() -> None:
        async with client(server, path, additional_headers={"x-request-id": "me"}) as made:
            assert made.response is not None
            assert made.response.status_code == 101
            assert made.response.headers["x-request-id"] == "me"
            for text in TEXTS:
                await made.send(text)
                assert await made.recv() == text
            await made.send(["in ", "three", " frames"])
            assert await made.recv() == "in three frames"
            await (await made.ping())

    before = counted(server.app, 101)
    asyncio.run(talk())
    poll_until(lambda: counted(server.app, 101) == before + 1)


def test_many_texts_at_once_come_in_order(server: RunningServer) -> None:
    async def talk() -> None:
        async with client(server) as made:
            said = [f"{i} " + "x" * (i % 700) for i in range(2000)]
            sending = asyncio.gather(*(made.send(text) for text in said))
            assert [await made.recv() for _ in said] == said
            await sending

    asyncio.run(talk())


def test_nothing_is_packed_and_no_subprotocol_chosen(server: RunningServer) -> None:
    async def talk() -> None:
        async with client(server, compression="deflate", subprotocols=["a", "b"]) as made:
            assert made.response is not None
            assert "sec-websocket-extensions" not in made.response.headers
            assert made.subprotocol is None
            await made.send("x" * 1000)
            assert await made.recv() == "x" * 1000

    asyncio.run(talk())


KEYS: dict[str, Any] = {"api_key": ("secret",)}
LOCAL = "http://localhost:3000"
REFUSED: list[tuple[dict[str, Any], dict[str, str], int, str]] = [
    (KEYS, {}, 401, "invalid_api_key"),
    (KEYS, {"authorization": "Bearer wrong"}, 401, "invalid_api_key"),
    ({}, {"host": "second"}, 400, "bad_host"),
    ({}, {"origin": "https://evil.example"}, 403, "forbidden"),
    ({}, {"origin": "null"}, 403, "forbidden"),
]


async def refusal(made: connect) -> Any:
    with pytest.raises(InvalidStatus) as caught:
        await made
    response = caught.value.response
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    return response.status_code, json.loads(response.body)["error"]["code"]


@pytest.mark.parametrize(("options", "headers", "status", "code"), REFUSED)
def test_a_refusal_is_the_answer_any_request_gets(
    options: dict[str, Any], headers: dict[str, str], status: int, code: str
) -> None:
    with talks(**options) as server:
        more: dict[str, Any] = {"additional_headers": headers}
        assert asyncio.run(refusal(client(server, **more))) == (status, code)
        poll_until(lambda: nothing_open(server))
        assert server.app.metrics.errors[code] == 1


@pytest.mark.parametrize("headers", [{"authorization": "Bearer secret"}, {"x-api-key": "secret"}])
def test_a_key_opens_it(headers: dict[str, str]) -> None:
    async def talk() -> None:
        async with client(server, additional_headers=headers, origin=LOCAL) as made:
            await made.send("hi")
            assert await made.recv() == "hi"

    with talks(**KEYS) as server:
        asyncio.run(talk())


async def spoken(app: App, headers: list[Any], extensions: dict[str, Any]) -> list[Any]:
    """What the app says to a bare request for a WebSocket whose client leaves at once."""
    scope = {"type": "websocket", "path": PATH, "headers": headers, "extensions": extensions}
    came: list[Any] = [{"type": "websocket.connect"}, {"type": "websocket.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return came.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize(
    ("origin", "status"), [("https://evil.example", 403), ("https://server.example", None)]
)
def test_a_server_for_others_gives_none_to_pages_from_elsewhere(
    origin: str, status: int | None
) -> None:
    app = make_app(
        build_engine_runtime(ScriptedEngine("x"), {"port": 0, "name": "scripted"}), local=False
    )
    inner = talking()
    for route in inner.router.routes:
        app.router.add(route)
    headers = [(b"host", b"server.example:8000"), (b"origin", origin.encode())]
    sent = asyncio.run(spoken(app, headers, {"websocket.http.response": {}}))
    assert sent[0].get("status") == status


def test_an_upgrade_elsewhere_is_declined_and_answered(server: RunningServer) -> None:
    async def refused(path: str) -> int:
        with pytest.raises(InvalidStatus) as caught:
            await client(server, path)
        return int(caught.value.response.status_code)

    assert asyncio.run(refused("/health/live")) == 200
    assert asyncio.run(refused("/v1/embeddings")) == 405
    assert asyncio.run(refused("/nowhere")) == 404


HEAD = b"%b /v1/talk HTTP/1.1\r\nhost: localhost\r\nconnection: %b\r\nupgrade: %b\r\n"
ASKING = HEAD % (b"GET", b"upgrade", b"websocket") + b"sec-websocket-version: 13\r\n"
KEY = b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
GOOD = ASKING + KEY + b"\r\n"


def first_line(server: RunningServer, sent: bytes) -> bytes:
    with tcp.create_connection(("127.0.0.1", server.port), timeout=20) as made:
        made.sendall(sent)
        return made.recv(65536).partition(b"\r\n")[0]


HANDSHAKES: list[tuple[bytes, int]] = [
    (GOOD, 101),
    (GOOD.replace(b"/v1/talk", b"/v1/t%61lk?x=%zz&&"), 101),
    (GOOD.replace(b"upgrade\r", b"keep-alive, Upgrade\r"), 101),
    (GOOD.replace(b"websocket\r", b"WebSocket\r"), 101),
    (GOOD.replace(b"\r\n\r\n", b"\r\nx: " + b"y" * 20_000 + b"\r\n\r\n"), 101),
    (ASKING + b"\r\n", 405),
    (ASKING + b"sec-websocket-key: short\r\n\r\n", 405),
    (ASKING + KEY + KEY + b"\r\n", 405),
    (GOOD.replace(b": 13", b": 12"), 405),
    (GOOD.replace(b"websocket\r", b"h2c\r"), 405),
    (GOOD.replace(b"GET", b"POST"), 200),
    (ASKING + KEY + b"content-length: 3\r\n\r\nabc", 405),
    (ASKING + KEY + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 405),
    (GOOD.replace(b"HTTP/1.1", b"HTTP/1.0"), 405),
    (GOOD.replace(b"localhost", b"evil.example"), 403),
    (GOOD.replace(b"localhost", b"a/b"), 400),
    (GOOD.replace(b"/v1/talk", b"/v1/t\xe4lk"), 400),
    (GOOD.replace(b"/v1/talk", b"talk"), 400),
]


@pytest.mark.parametrize(("sent", "status"), HANDSHAKES)
def test_only_a_proper_request_is_upgraded(server: RunningServer, sent: bytes, status: int) -> None:
    assert first_line(server, sent).startswith(b"HTTP/1.1 %d " % status)


def test_a_connection_may_be_used_before_it_is_upgraded(server: RunningServer) -> None:
    get = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with tcp.create_connection(("127.0.0.1", server.port), timeout=20) as made:
        made.sendall(get)
        assert made.recv(65536).startswith(b"HTTP/1.1 200 ")
        made.sendall(GOOD + frame(b"early"))
        assert until(made, b"early").startswith(b"HTTP/1.1 101 ")
    with tcp.create_connection(("127.0.0.1", server.port), timeout=20) as made:
        made.sendall(get + GOOD)  # not its turn: left alone, and the connection closed
        assert b" 101 " not in until(made, None)


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def until(made: tcp.socket, end: bytes | None) -> bytes:
    """What the server says until it says this, or closes."""
    said = b""
    try:
        while end is None or end not in said:
            data = made.recv(65536)
            if not data:
                break
            said += data
    except ConnectionError:
        pass
    return said


@contextmanager
def opened(server: RunningServer) -> Iterator[tcp.socket]:
    with tcp.create_connection(("127.0.0.1", server.port), timeout=20) as made:
        made.sendall(GOOD)
        assert until(made, b"\r\n\r\n").startswith(b"HTTP/1.1 101 ")
        yield made


CONT = Opcode.CONT
LIMIT = 1000
ENDS: list[tuple[bytes, int]] = [
    (frame(b"x" * 1001), 1009),
    (frame(b"x" * 600, fin=False) + frame(b"x" * 600, CONT), 1009),
    (b"\x81\xff" + b"\x7f" + b"\xff" * 7 + b"mask", 1009),
    (frame(b"abc", Opcode.BINARY), 1003),
    (frame(b"ab", Opcode.BINARY, fin=False) + frame(b"c", CONT), 1003),
    (frame(b"\xff\xfe"), 1007),
    (frame(b"\xed\xa0\x80"), 1007),
    (Frame(Opcode.TEXT, b"not masked").serialize(mask=False), 1002),
    (frame(b"x", CONT), 1002),
    (frame(b"x", fin=False) + frame(b"y"), 1002),
    (b"\xc1" + frame(b"packed?")[1:], 1002),
    (b"\x83" + frame(b"unknown")[1:], 1002),
    (b"\x09" + frame(b"", Opcode.PING)[1:], 1002),
    (b"GET / HTTP/1.1\r\n\r\n", 1002),
    (frame(b"x" * 10)[:8], 1008),  # and nothing more
    (frame(b"a", fin=False) + frame(b"", CONT, fin=False) * 5000, 1008),
    (frame((1000).to_bytes(2, "big"), Opcode.CLOSE), 1000),
    (frame((4321).to_bytes(2, "big") + b"why", Opcode.CLOSE), 4321),
    (frame((1).to_bytes(2, "big"), Opcode.CLOSE), 1002),
]


@pytest.fixture(scope="module")
def strict() -> Iterator[RunningServer]:
    with talks(body_limit=LIMIT, receive_timeout=0.3) as made:
        yield made


@pytest.mark.parametrize(
    ("sent", "code"), ENDS, ids=[f"{i}-{code}" for i, (_, code) in enumerate(ENDS)]
)
def test_what_must_not_be_said_ends_it_with_a_code(
    strict: RunningServer, sent: bytes, code: int
) -> None:
    with opened(strict) as made:
        made.sendall(frame(b"x" * LIMIT))
        until(made, b"x" * LIMIT)
        made.sendall(sent)
        said = until(made, code.to_bytes(2, "big"))
    assert said[:1] == b"\x88"
    assert int.from_bytes(said[2:4], "big") == code
    poll_until(lambda: nothing_open(strict))


def test_a_message_that_drips_is_not_waited_for(strict: RunningServer) -> None:
    with opened(strict) as made:
        made.sendall(b"\x81")
        assert b"\x88" in until(made, None)
    poll_until(lambda: nothing_open(strict))


def test_a_client_that_leaves_without_a_word_is_noticed() -> None:
    began = asyncio.Event()

    async def work(socket: WebSocketSession) -> None:
        await socket.receive()
        began.set()
        await socket.wait_closed()

    with talks(work) as server:
        with opened(server) as made:
            made.sendall(frame(b"work"))
            server.run_coroutine(asyncio.wait_for(began.wait(), 20))
        poll_until(lambda: nothing_open(server))
        assert server.app.metrics.errors == {}  # the handler took note and ended
    with talks() as server:
        with opened(server) as made:
            linger = (1).to_bytes(4, "little") + bytes(4)
            made.setsockopt(tcp.SOL_SOCKET, tcp.SO_LINGER, linger)
        poll_until(lambda: nothing_open(server))
        assert server.app.metrics.errors == {"client_disconnected": 1}
        assert counted(server.app, 499) == 1


def test_a_client_that_says_goodbye_is_no_error() -> None:
    with talks() as server:
        for end in (frame(b"", Opcode.CLOSE), frame((1001).to_bytes(2, "big"), Opcode.CLOSE)):
            with opened(server) as made:
                made.sendall(end)
                assert until(made, None)[:1] == b"\x88"
        poll_until(lambda: counted(server.app, 101) == 2)
        assert server.app.metrics.succeeded == 2
        assert not server.app.metrics.errors


def test_a_slow_reader_slows_the_sender_and_gets_everything() -> None:
    sent = 0

    async def much(socket: WebSocketSession) -> None:
        nonlocal sent
        await socket.receive()
        for i in range(2000):
            await socket.send(b"%04d" % i + b"x" * 10_000)
            sent += 1

    async def talk() -> None:
        async with client(server, max_queue=1) as made:
            await made.send("go")
            assert (await made.recv())[:4] == "0000"
            await asyncio.to_thread(
                poll_until, lambda: any(not one.ready for one in upgraded(server))
            )
            assert sent < 2000
            for i in range(1, 2000):
                assert (await made.recv())[:4] == f"{i:04}"
            with pytest.raises(ConnectionClosed):
                await made.recv()
            assert made.close_code == 1000

    with talks(much) as server:
        asyncio.run(talk())
        poll_until(lambda: nothing_open(server))


def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    with talks(pour, stall=0.2) as server, tcp.socket() as made:
        made.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", server.port))
        made.sendall(GOOD + frame(b"go"))
        poll_until(lambda: counted(server.app, 499) == 1)
        poll_until(lambda: nothing_open(server))


def test_pings_that_nobody_hears_answered_do_not_pile_up() -> None:
    with talks(stall=0.5) as server, tcp.socket() as made:
        made.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", server.port))
        made.sendall(GOOD)
        made.setblocking(False)
        pings = frame(b"x" * 125, Opcode.PING) * 500
        most = 0
        while not nothing_open(server) or not most:
            try:
                made.send(pings)
            except BlockingIOError:
                pass
            except ConnectionError:
                break
            for one in upgraded(server):
                most = max(most, one.transport.get_write_buffer_size())
        assert most < 3 * 1024 * 1024
        poll_until(lambda: nothing_open(server))


def test_a_client_that_does_not_answer_pings_is_dropped() -> None:
    with talks(ping=0.05, stall=0.2) as server, opened(server) as made:
        assert until(made, None).startswith(frame_of_ping())
        poll_until(lambda: nothing_open(server))


def frame_of_ping() -> bytes:
    return Frame(Opcode.PING, b"").serialize(mask=False)


def test_a_client_that_answers_pings_stays() -> None:
    with talks(ping=0.02, stall=0.02) as server, opened(server) as made:
        for _ in range(20):
            assert until(made, b"\x89") == frame_of_ping()
            made.sendall(frame(b"", Opcode.PONG))
        made.sendall(frame(b"still here"))
        assert b"still here" in until(made, b"here")


def test_one_that_rests_too_long_is_closed() -> None:
    async def talk() -> int | None:
        async with client(server) as made:
            with pytest.raises(ConnectionClosed):
                await made.recv()
            return made.close_code

    with talks() as server:
        server.app.websockets.idle = 0.1
        assert asyncio.run(talk()) == 1000


FAILING: list[tuple[Exception, int, str]] = [
    (BadRequest("This is wrong.", code="wrong"), 1011, "wrong"),
    (ValueError("inside"), 1011, "engine_error"),
]


@pytest.mark.parametrize(("failure", "code", "counted_as"), FAILING)
def test_a_handler_that_fails_closes_it(failure: Exception, code: int, counted_as: str) -> None:
    async def fail(socket: WebSocketSession) -> None:
        await socket.receive()
        raise failure

    async def talk() -> tuple[int | None, str | None]:
        async with client(server) as made:
            await made.send("go")
            with pytest.raises(ConnectionClosed):
                await made.recv()
            return made.close_code, made.close_reason

    with talks(fail) as server:
        closed, reason = asyncio.run(talk())
        assert closed == code
        assert "inside" not in (reason or "")
        poll_until(lambda: nothing_open(server))
        assert server.app.metrics.errors == {counted_as: 1}


def test_reading_and_writing_go_on_at_once() -> None:
    async def count(socket: WebSocketSession) -> None:
        """Count, while being told to go on."""

        async def counting() -> None:
            for i in range(1000):
                await socket.send(str(i).encode())

        with socket.busy():
            task = asyncio.create_task(counting())
            while await socket.receive() != b"stop":
                pass
            await task
        await socket.send(b"stopped")

    async def talk() -> None:
        async with client(server) as made:
            for i in range(1000):
                await made.send("go on")
                assert await made.recv() == str(i)
            await made.send("stop")
            assert await made.recv() == "stopped"

    with talks(count) as server:
        asyncio.run(talk())


def tasks(server: RunningServer) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks())

    return int(server.run_coroutine(count()))


def test_a_hundred_leave_nothing_behind() -> None:
    async def everyone() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*(one(i) for i in range(100)))

    async def one(i: int) -> None:
        made = await client(server)
        await made.send("hi")
        assert await made.recv() == "hi"
        if i % 3 == 0:
            await made.close()
        elif i % 3 == 1:
            made.transport.abort()
        else:
            await made.send(b"binary")
            await made.wait_closed()

    with talks() as server:
        before = tasks(server)
        asyncio.run(everyone())
        poll_until(lambda: nothing_open(server))
        poll_until(lambda: tasks(server) == before)
        gc.collect()
        assert not [
            one
            for one in gc.get_objects()
            if (isinstance(one, WebSocketConnection) and one._state is server._server.server_state)
            or (isinstance(one, Connection) and one.server_state is server._server.server_state)
            or (isinstance(one, WebSocketSession) and one._sockets is server.app.websockets)
        ]


def test_stopping_closes_what_rests_at_once_and_the_rest_when_it_is_done() -> None:
    async def work(socket: WebSocketSession) -> None:
        while True:
            await socket.receive()
            await socket.send(b"begun")
            await finish.wait()
            await socket.send(b"done")

    async def talk() -> None:
        async with client(server) as resting, client(server) as busy:
            await busy.send("work")
            assert await busy.recv() == "begun"
            server._server.handle_exit(15, None)
            await resting.wait_closed()
            assert resting.close_code == 1012
            assert await refusal(client(server)) == (503, "draining")
            server.loop.call_soon_threadsafe(finish.set)
            assert await busy.recv() == "done"
            await busy.wait_closed()
            assert busy.close_code == 1012

    finish = asyncio.Event()
    with talks(work) as server:
        asyncio.run(talk())
        server._thread.join(20)
        assert not server._thread.is_alive()


def test_stopping_does_not_interrupt_work_whose_handler_listens() -> None:
    async def work(socket: WebSocketSession) -> None:
        with socket.busy():
            await socket.send(b"begun")
            assert await socket.receive() == b"finish"
            await socket.send(b"done")
        await socket.receive()

    async def talk() -> None:
        async with client(server) as made:
            assert await made.recv() == "begun"
            server._server.handle_exit(15, None)
            await asyncio.to_thread(poll_until, lambda: server.app.websockets.draining is not None)
            await made.send("finish")
            assert await made.recv() == "done"
            await made.wait_closed()
            assert made.close_code == 1012

    with talks(work) as server:
        asyncio.run(talk())


def test_a_reader_that_takes_nothing_does_not_keep_the_server_from_stopping() -> None:
    with talks(pour, drain=0.1) as server, opened(server) as made:
        made.sendall(frame(b"go"))
        poll_until(lambda: any(not one.ready for one in upgraded(server)))
        server._server.handle_exit(15, None)
        server._thread.join(20)
        assert not server._thread.is_alive()


def test_one_that_outlasts_the_drain_is_closed() -> None:
    async def stuck(socket: WebSocketSession) -> None:
        await socket.send(b"begun")
        await socket.wait_closed()

    async def talk() -> None:
        async with client(server) as made:
            assert await made.recv() == "begun"
            server._server.handle_exit(15, None)
            await made.wait_closed()
            assert made.close_code == 1012

    with talks(stuck, drain=0.1) as server:
        asyncio.run(talk())
        server._thread.join(20)
        assert not server._thread.is_alive()


def test_every_route_of_this_kind_needs_a_key() -> None:
    with talks(**KEYS) as server:
        paths = [route.path for route in server.app.router.routes if route.method == WEBSOCKET]
        assert PATH in paths
        for path in paths:
            assert asyncio.run(refusal(client(server, path))) == (401, "invalid_api_key")


def test_a_server_that_knows_no_answers_closes() -> None:
    sent = asyncio.run(spoken(talking(**KEYS), [(b"host", b"localhost")], {}))
    assert [message["type"] for message in sent] == ["websocket.close"]


@asynccontextmanager
async def mounted(app: App) -> AsyncIterator[int]:
    """The app in somebody else's, served by a server that is not ours."""
    outer = Starlette(routes=[Mount("/ai", app=app)])
    config = uvicorn.Config(outer, port=0, ws="websockets-sansio", lifespan="off", log_config=None)
    made = uvicorn.Server(config)
    serving = asyncio.create_task(made.serve())
    await asyncio.to_thread(poll_until, lambda: made.started)
    try:
        yield made.servers[0].sockets[0].getsockname()[1]
    finally:
        made.should_exit = True
        await serving


def test_it_works_in_somebody_elses_app() -> None:
    async def talk() -> None:
        app = talking(body_limit=LIMIT, **KEYS)
        key = {"x-api-key": "secret"}
        async with mounted(app) as port:

            def reach(headers: dict[str, str], path: str = PATH) -> connect:
                address = f"ws://127.0.0.1:{port}/ai{path}"
                return connect(address, additional_headers=headers, proxy=None)

            async with reach(key) as made:
                for text in ("hi", "", "x" * LIMIT):
                    await made.send(text)
                    assert await made.recv() == text
                await made.send("x" * (LIMIT + 1))
                await made.wait_closed()
                assert made.close_code == 1009
            assert await refusal(reach({})) == (401, "invalid_api_key")
            assert await refusal(reach(key, "/v1/models")) == (405, "method_not_allowed")
            async with reach(key) as made:
                await made.send(b"binary")
                await made.wait_closed()
                assert made.close_code == 1003
            async with httpx.AsyncClient() as plain:
                response = await plain.post(f"http://127.0.0.1:{port}/ai{PATH}", headers=key)
                assert response.text == "plain"
        assert counted(app, 101) == 0
        assert counted(app, 499) == 2
        assert len(app.websockets) == 0

    asyncio.run(talk())
