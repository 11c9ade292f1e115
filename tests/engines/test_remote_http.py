"""What servers, proxies and networks do to answers on the way, byte by byte."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from dragoman.errors import (
    BadRequest,
    DragomanError,
    EngineDown,
    EngineFailed,
    ModelBroken,
    Overloaded,
    Unavailable,
)
from dragoman.types import Json
from tests.support.certificates import Authority
from tests.support.raw_upstream import (
    CHUNKED,
    DONE,
    EVENTS,
    Answer,
    Play,
    RawUpstream,
    chunk,
    make_answer,
    make_body,
    make_end,
    make_frame,
    open_raw,
)
from tests.support.remote_engines import collect_ids, in_event_loop, make_job

TEXT = "Hello"
IDS = list(TEXT.encode())
OK = make_answer("x")  # the answer to the probe at the start
BODY = make_body(TEXT)
JOINED = b"".join(BODY)
END = b"0\r\n\r\n"
STALL = {"stall_timeout": 0.2, "prefill_rate": 1e6}


def with_length(body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return EVENTS + lines + b"content-length: %d\r\n\r\n" % len(body) + body


def make_whole(body: bytes) -> bytes:
    """Return an answer that is not streamed."""
    return with_length(body).replace(b"text/event-stream", b"application/json")


def make_padded(size: int) -> list[bytes]:
    """Return an answer whose first frame is very long."""
    first = make_frame(IDS[:1], text="y" * size)
    parts = [first[start : start + 65536] for start in range(0, len(first), 65536)]
    return [CHUNKED, *(chunk(part) for part in parts), chunk(*BODY[1:]) + END]


# answers that are unusual but valid
VALID: dict[str, Answer] = {
    "100 continue": [b"HTTP/1.1 100 Continue\r\n\r\n", CHUNKED + chunk(*BODY) + END],
    "early hints": [
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n",
        CHUNKED + chunk(*BODY) + END,
    ],
    "trailers": [CHUNKED + chunk(*BODY) + b"0\r\nx-checksum: 1\r\nserver-timing: a\r\n\r\n"],
    "extensions of chunks": [CHUNKED + b"%x;a=b\r\n%b\r\n" % (len(JOINED), JOINED) + END],
    "length": [with_length(JOINED)],
    "byte by byte": [bytes([byte]) for byte in CHUNKED + chunk(*BODY) + END],
    "identity": [with_length(JOINED, b"content-encoding: identity")],
    "parameters of the type": [
        with_length(JOINED).replace(b"event-stream", b"event-stream; charset=utf-8")
    ],
    "type of plain text": [with_length(JOINED).replace(b"event-stream", b"plain")],
    "type of a page": [with_length(b": hello\n\n" + JOINED).replace(b"event-stream", b"html")],
    "type of JSON, byte by byte": [
        bytes([byte])
        for byte in with_length(b"\xef\xbb\xbf\nevent: token\n" + JOINED).replace(
            b"text/event-stream", b"application/json"
        )
    ],
    "no type": [with_length(JOINED).replace(b"content-type: text/event-stream\r\n", b"")],
    "carriage returns": [with_length(JOINED.replace(b"\n", b"\r\n"))],
    "only carriage returns": [with_length(JOINED.replace(b"\n", b"\r"))],
    "carriage returns, byte by byte": [
        bytes([byte]) for byte in with_length(JOINED.replace(b"\n", b"\r\n"))
    ],
    "mixed ends of lines": [CHUNKED + chunk(*(x[:-1] + b"\r\n" for x in BODY)) + END],
    "carriage returns before the empty lines": [
        CHUNKED + chunk(*(x[:-2] + b"\r\n\n" for x in BODY)) + END
    ],
    "byte order mark": [with_length(b"\xef\xbb\xbf" + JOINED)],
    "byte order mark in parts": [CHUNKED, b"1\r\n\xef\r\n", chunk(b"\xbb\xbf" + JOINED) + END],
    "no encoding": [with_length(JOINED, b"content-encoding: ")],
    "no empty line at the end": [with_length(JOINED.rstrip(b"\n"))],
    "no empty line after the finish": [CHUNKED + chunk(b"".join(BODY[:-2]).rstrip(b"\n")) + END],
    "other interim status": [b"HTTP/1.1 199 Odd\r\nx: y\r\n\r\n", CHUNKED + chunk(*BODY) + END],
    "empty frames": [CHUNKED + chunk(b"data:\n\n", b"data: \n\n", b":\n\n", b"\n\n", *BODY) + END],
    "comments and events": [
        CHUNKED + chunk(b": ping\n\nevent: token\nid: 7\nretry: 10\n" + JOINED) + END
    ],
    "all ids in one frame": [
        CHUNKED + chunk(make_frame(IDS, "stop"), make_end(len(IDS)), DONE) + END
    ],
    "no news": [CHUNKED + chunk(make_frame([]), b'data: {"choices":[]}\n\n', *BODY) + END],
    "no usage": [CHUNKED + chunk(*BODY[:-2], DONE) + END],
    "no end": [CHUNKED + chunk(*BODY[:-1]) + END],
    "finish twice": [CHUNKED + chunk(*BODY[:-2], make_frame([], "stop"), *BODY[-2:]) + END],
    "more after the end": [
        CHUNKED + chunk(*BODY, make_frame([1], "stop"), b"data: nonsense\n\n", DONE) + END
    ],
    "long line": make_padded(8 << 20),
    "whole answer": [make_whole(make_frame(IDS, "stop")[6:-2])],
    "whole answer without a type": [
        make_whole(make_frame(IDS, "stop")[6:-2]).replace(
            b"content-type: application/json\r\n", b""
        )
    ],
    "whole answer with an empty line": [make_whole(b"\n\n" + make_frame(IDS, "stop")[6:])],
}
VALID["another response at once"] = [
    CHUNKED + chunk(*BODY) + END + CHUNKED + chunk(make_frame([1])) + END
]
HTML = b"<html><body><h1>Please log in</h1></body></html>"
# answers that are no answers
INVALID: dict[str, Sequence[bytes]] = {
    "gzip": [with_length(gzip.compress(JOINED), b"content-encoding: gzip")],
    "page of a proxy": [with_length(HTML).replace(b"text/event-stream", b"text/html")],
    "page that begins with a stream's word": [
        with_length(b"database error\n\n" + JOINED).replace(b"event-stream", b"plain")
    ],
    "page without content": [with_length(b"").replace(b"event-stream", b"html")],
    "whole answer without a choice": [make_whole(b'{"choices":[]}')],
    "whole answer that has not finished": [make_whole(make_frame(IDS)[6:-2])],
    "whole answer in gzip": [
        make_whole(make_frame(IDS)[6:-2]).replace(b"\r\n", b"\r\ncontent-encoding: gzip\r\n", 1)
    ],
    "invalid UTF-8": [CHUNKED + chunk(make_frame([1], text="TEXT").replace(b"TEXT", b"\xff\xfe"))],
    "invalid JSON": [CHUNKED + chunk(b"data: {\n\n")],
    "not an object": [CHUNKED + chunk(b"data: 5\n\n")],
    "id that is no number": [CHUNKED + chunk(make_frame([1]).replace(b"[1]", b'["1"]'))],
    "fraction": [CHUNKED + chunk(make_frame([1]).replace(b"[1]", b"[1.5]"))],
    "truth": [CHUNKED + chunk(make_frame([1]).replace(b"[1]", b"[true]"))],
    "huge id": [CHUNKED + chunk(make_frame([1]).replace(b"[1]", b"[99999999999999999999]"))],
    "id beyond the vocabulary": [CHUNKED + chunk(make_frame([100_000]))],
    "negative id": [CHUNKED + chunk(make_frame([-1]))],
    "other choice": [CHUNKED + chunk(make_frame([1]).replace(b'"index":0', b'"index":1'))],
    "tokens after the end": [CHUNKED + chunk(*BODY[:-2], make_frame([1]), *BODY[-2:]) + END],
    "wrong count": [CHUNKED + chunk(*BODY[:-2], make_end(99), DONE) + END],
    "not HTTP": [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "endless headers": [b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000],
    "many headers": [b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000],
}
NAN_FRAMES = {
    text: make_frame([72], logprobs={"content": [{"token_id": 72, "logprob": 7777}]}).replace(
        b"7777", text.encode()
    )
    for text in ("NaN", "Infinity")
}


async def end_with_the_connection(writer: asyncio.StreamWriter) -> None:
    writer.write(EVENTS.replace(b"1.1", b"1.0") + b"\r\n" + JOINED)
    writer.close()


def send_and_close(*parts: bytes) -> Play:
    """Send parts, and close the connection."""

    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(parts))
        await writer.drain()
        writer.close()

    return play


VALID["HTTP/1.0"] = end_with_the_connection
# the choice has finished: nothing of the answer is missing
VALID["neither usage nor end"] = [CHUNKED + chunk(*BODY[:-2]) + END]
VALID["closed after the finish"] = send_and_close(CHUNKED + chunk(*BODY[:-2]))
VALID["closed inside the usage"] = send_and_close(CHUNKED + chunk(*BODY[:-1])[:-9])
VALID["HTTP/1.0 without an end"] = send_and_close(
    EVENTS.replace(b"1.1", b"1.0"), b"\r\n", *BODY[:-2]
)
VALID["connection: close"] = send_and_close(
    CHUNKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + chunk(*BODY) + END
)


async def run_answer(answer: Answer, **settings: float) -> tuple[list[int], DragomanError | None]:
    """Return the tokens of an answer and its error; check that the next request is answered."""
    server = RawUpstream(OK, answer, make_answer("after"))
    async with server.run(), open_raw(server, **settings) as engine:
        ids: list[int] = []
        error = None
        try:
            ids = await collect_ids(engine, make_job())
        except DragomanError as problem:
            error = problem
        await engine.health.wait_ready()
        assert await collect_ids(engine, make_job()) == list(b"after")
        assert engine.running_requests == 0
        return ids, error


@pytest.mark.parametrize("case", VALID)
@in_event_loop
async def test_unusual_answers_are_answers(case: str) -> None:
    ids, error = await run_answer(VALID[case])
    assert error is None, error
    assert ids == IDS


@pytest.mark.parametrize("case", INVALID)
@in_event_loop
async def test_invalid_answers_fail_and_the_next_one_is_read(case: str) -> None:
    _, error = await run_answer(INVALID[case])
    assert isinstance(error, EngineFailed)
    assert error.message == "The upstream server returned an invalid answer."


@in_event_loop
async def test_what_follows_an_invalid_frame_is_not_read() -> None:
    frames = chunk(make_frame([72]), make_frame([-1]), make_frame([73]), *BODY)
    server = RawUpstream(OK, [CHUNKED + frames + END])
    async with server.run(), open_raw(server) as engine:
        steps = engine.generate(make_job())
        assert (await anext(steps)).ids == [72]
        with pytest.raises(EngineFailed, match="invalid answer"):
            await anext(steps)


@pytest.mark.parametrize("text", NAN_FRAMES)
@in_event_loop
async def test_probabilities_that_are_no_numbers_fail(text: str) -> None:
    server = RawUpstream(OK, [CHUNKED + chunk(NAN_FRAMES[text])], make_answer("after"))
    async with server.run(), open_raw(server) as engine:
        with pytest.raises(EngineFailed, match="invalid answer"):
            await collect_ids(engine, make_job(logprobs=1))


FRAME = chunk(make_frame([72], text="é"))
BROKEN = {
    "between two frames": FRAME,
    "inside a chunk": FRAME + FRAME[:-9],
    "inside the size of a chunk": FRAME + FRAME[:1],
    "inside a character": FRAME + FRAME[: FRAME.index(b"\xc3") + 1],
    "after a comment": FRAME + chunk(b": ping\n\n"),
}


@pytest.mark.parametrize("case", BROKEN)
@in_event_loop
async def test_an_answer_that_breaks_off_is_not_sent_again(case: str) -> None:
    server = RawUpstream(OK, send_and_close(CHUNKED + BROKEN[case]), make_answer("again"))
    async with server.run(), open_raw(server) as engine:
        steps = engine.generate(make_job())
        assert (await anext(steps)).ids == [72]
        with pytest.raises(EngineDown, match="stopped before the answer was finished"):
            await anext(steps)
        assert engine.retries == 0
        assert server.answers == [make_answer("again")]


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 2", CHUNKED, CHUNKED + FRAME[:-9]])
@in_event_loop
async def test_an_answer_that_breaks_off_before_its_first_token_is_sent_again(part: bytes) -> None:
    server = RawUpstream(OK, send_and_close(part), make_answer(TEXT))
    async with server.run(), open_raw(server) as engine:
        assert await collect_ids(engine, make_job()) == IDS
        assert engine.health.failures == 0


CUT_STRIDE = 5  # of bytes; every byte takes seven seconds
FRAMINGS = {
    "chunks": CHUNKED + chunk(*BODY) + END,
    "length": with_length(JOINED),
    "HTTP/1.0": EVENTS.replace(b"1.1", b"1.0") + b"\r\n" + JOINED,
}


@pytest.mark.parametrize("framing", FRAMINGS)
@in_event_loop
async def test_an_answer_that_is_cut_anywhere_is_whole_or_an_error(framing: str) -> None:
    """Cut before the first token it is sent again, after the finish it is an answer."""
    answer = FRAMINGS[framing]
    server = RawUpstream(OK)
    async with server.run(), open_raw(server) as engine:
        outcomes: list[str] = []
        for size in range(0, len(answer), CUT_STRIDE):
            server.answers[:] = [send_and_close(answer[:size]), make_answer(TEXT), OK]
            steps: list[int] = []
            try:
                async for step in engine.generate(make_job()):
                    steps += step.ids
                outcome = "again" if server.answers == [OK] else "whole"
                assert steps == IDS, size
            except EngineDown:
                outcome = "error"
                assert server.answers != [OK], "it is sent again after its first token"
                assert steps == IDS[: len(steps)], size
            if outcomes[-1:] != [outcome]:
                outcomes.append(outcome)
        assert outcomes == ["again", "error", "whole"]
        assert engine.running_requests == 0


ODD_BODIES = [
    b"",
    b"null",
    b"<html>\xff</html>",
    b'{"error":"caf\xe9"}',
    b'{"error":[1,{"message":2}]}',
    b'{"error":{"message":{"a":[]},"type":7,"code":"x"}}',
    b"[" * 60_000,
    b"x" * 200_000,
]


@pytest.mark.parametrize("body", ODD_BODIES, ids=lambda body: str(body[:20]))
@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, BadRequest), (404, EngineFailed), (429, Overloaded), (500, EngineFailed)],
)
@in_event_loop
async def test_errors_with_odd_bodies_are_errors_at_once(
    status: int, kind: type[DragomanError], body: bytes
) -> None:
    head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    _, error = await run_answer([head + body])
    assert type(error) is kind


def send_then_wait(*parts: bytes) -> Play:
    async def play(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
        await writer.drain()
        await asyncio.Event().wait()

    return play


SILENT: dict[str, Answer] = {
    "nothing": send_then_wait(),
    "half of the headers": send_then_wait(b"HTTP/1.1 200 OK\r\ncontent-ty"),
    "headers": send_then_wait(CHUNKED),
    "half a frame": send_then_wait(CHUNKED + b"ff\r\n" + make_frame([72])[:20]),
    "half a chunk size": send_then_wait(CHUNKED + chunk(make_frame([72])) + b"f"),
    "100 continue": send_then_wait(b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("case", SILENT)
@in_event_loop
async def test_silence_anywhere_is_a_stall(case: str) -> None:
    _, error = await run_answer(SILENT[case], **STALL)
    assert isinstance(error, EngineDown)
    assert error.message == "The upstream server made no progress on this request."


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (301, EngineFailed, "redirects"),
        (307, EngineFailed, "redirects"),
        (401, Unavailable, "API key"),
        (403, Unavailable, "API key"),
        (500, EngineFailed, "failed while processing"),
        (408, Unavailable, "cannot run this request now"),
        (425, Unavailable, "cannot run this request now"),
        (502, Unavailable, "cannot run this request now"),
        (520, Unavailable, "cannot run this request now"),
        (529, Unavailable, "cannot run this request now"),
        (501, EngineFailed, "failed while processing"),
        (204, EngineFailed, "failed while processing"),
        (418, EngineFailed, "failed while processing"),
    ],
)
@in_event_loop
async def test_statuses_of_servers_and_proxies(
    status: int, kind: type[DragomanError], message: str
) -> None:
    head = b"HTTP/1.1 %d X\r\nlocation: http://127.0.0.1:1/x\r\ncontent-length: 4\r\n\r\npage"
    _, error = await run_answer([head % status])
    assert isinstance(error, kind)
    assert message in error.message
    assert "127.0.0.1" not in error.message


AN_HOUR_AWAY = b"the date in an hour"


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (b"7", 7.0, 7.0),
        (b" 2.5 ", 2.5, 2.5),
        (AN_HOUR_AWAY, 1800.0, 3600.0),
        (b"Wed, 21 Oct 2015 07:28:00 GMT", 0.0, 0.0),
        (b"99999999999", 3600.0, 3600.0),
        (b"-3", 0.0, 0.0),
        (b"nan", 1.0, 1.0),
        (b"soon", 1.0, 1.0),
        (b"Wed, 99 Foo", 1.0, 1.0),
        (b"\xff", 1.0, 1.0),
    ],
)
@in_event_loop
async def test_a_retry_after_is_a_number_or_a_date(value: bytes, low: float, high: float) -> None:
    if value == AN_HOUR_AWAY:
        value = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True).encode()
    head = b"HTTP/1.1 429 X\r\nretry-after: %b\r\ncontent-length: 0\r\n\r\n"
    _, error = await run_answer([head % value])
    assert isinstance(error, Overloaded)
    assert error.retry_after is not None
    assert low <= error.retry_after <= high


def whole_json(body: bytes) -> list[bytes]:
    return [with_length(body).replace(b"text/event-stream", b"application/json; charset=utf-8")]


# errors that come with a status of 200
LATE_ERRORS: dict[str, tuple[Sequence[bytes], type[DragomanError]]] = {
    "whole": (whole_json(b'{"error":"Model was unloaded while generating"}'), EngineFailed),
    "whole, with a code": (whole_json(b'{"error":{"code":429,"message":"full"}}'), Overloaded),
    "in a field": (
        [CHUNKED + chunk(b'error: {"code":503,"message":"Loading model"}\n\n') + END],
        Unavailable,
    ),
    "event": (
        [CHUNKED + chunk(b'event: error\ndata: {"error":{"code":503}}\n\n') + END],
        Unavailable,
    ),
    "no empty line": ([CHUNKED + chunk(b'data: {"error":{"code":429}}') + END], Overloaded),
}


@pytest.mark.parametrize("case", LATE_ERRORS)
@in_event_loop
async def test_errors_after_a_good_status_leave_the_server_up(case: str) -> None:
    answer, kind = LATE_ERRORS[case]
    server = RawUpstream(OK, answer, make_answer("after"))
    async with server.run(), open_raw(server) as engine:
        with pytest.raises(kind):
            await collect_ids(engine, make_job())
        assert engine.health.failures == 0
        assert engine.retries == 0


@in_event_loop
async def test_a_key_that_a_server_repeats_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    key = "sk-/+=:~'\"%41"
    body = b'{"error":{"message":"Received API Key = %b"}}' % key.encode()
    head = b"HTTP/1.1 401 X\r\ncontent-length: %d\r\n\r\n" % len(body)
    server = RawUpstream(OK, [head + body])
    async with server.run(), open_raw(server, api_key=key) as engine:
        assert server.requests[-1][1]["authorization"] == f"Bearer {key}"
        with pytest.raises(Unavailable):
            await collect_ids(engine, make_job())
    assert "Received API Key" in caplog.text
    assert key not in caplog.text


@in_event_loop
async def test_a_server_may_say_more_about_its_model_later() -> None:
    server = RawUpstream(OK, make_answer(TEXT))
    server.listed = {"meta": {"n_vocab": 300}}
    async with server.run(), open_raw(server) as engine:
        fuller: dict[str, Json] = {"meta": {"n_vocab": 300, "n_ctx": 4096}, "max_model_len": 4096}
        emptier: dict[str, Json] = {"meta": {}}
        for server.listed in (fuller, emptier):
            server.close_connections()
            await engine.client.wait_all_lost()
            assert await collect_ids(engine, make_job()) == IDS
        server.listed = {"meta": {"n_vocab": 301}}
        server.close_connections()
        await engine.client.wait_all_lost()
        with pytest.raises(EngineDown, match="another model"):
            await collect_ids(engine, make_job())


@in_event_loop
async def test_connections_that_break_between_requests_cost_nothing() -> None:
    server = RawUpstream(OK, make_answer(TEXT))
    async with server.run(), open_raw(server) as engine:
        for _ in range(3):
            server.close_connections()
            assert await collect_ids(engine, make_job()) == IDS
        assert engine.health.failures == 0


@in_event_loop
async def test_another_model_after_a_restart_is_refused_until_it_is_back() -> None:
    server = RawUpstream(OK, make_answer(TEXT))
    async with server.run(), open_raw(server) as engine:
        assert await collect_ids(engine, make_job()) == IDS
        server.model = "other"
        server.close_connections()
        await engine.client.wait_all_lost()
        with pytest.raises(EngineDown, match="another model"):
            await collect_ids(engine, make_job())
        server.model = "raw"
        await engine.health.wait_ready()
        assert await collect_ids(engine, make_job()) == IDS


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("suffix", ["", "/"])
@in_event_loop
async def test_addresses_keep_their_prefix_and_may_be_ipv6(host: str, suffix: str) -> None:
    server = RawUpstream(OK, make_answer(TEXT), prefix="/models/a")
    async with server.run(host):
        server.url += suffix
        async with open_raw(server) as engine:
            assert await collect_ids(engine, make_job()) == IDS
    path, headers = server.requests[-1]
    assert path == "/models/a/inference/v1/generate"
    assert headers["host"] == server.url.split("/")[2]
    assert headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("days", [-1.0, 90.0])
@in_event_loop
async def test_certificates(days: float, tmp_path: Path) -> None:
    """One that has expired is refused at the start, like one of an unknown authority."""
    authority = Authority(tmp_path)
    files = authority.issue("server", days=days)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.cert, files.key)
    server = RawUpstream(OK, make_answer(TEXT))
    async with server.run(tls=tls):
        if days < 0:
            with pytest.raises(ModelBroken, match="certificate"):
                async with open_raw(server, ca_file=str(authority.file)):
                    pass
            return
        async with open_raw(server, ca_file=str(authority.file)) as engine:
            assert await collect_ids(engine, make_job()) == IDS


@in_event_loop
async def test_a_key_that_is_replaced_while_the_server_runs(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("old\n")
    server = RawUpstream(OK, make_answer(TEXT))
    async with server.run(), open_raw(server, api_key_file=str(file)) as engine:
        assert await collect_ids(engine, make_job()) == IDS
        assert server.requests[-1][1]["authorization"] == "Bearer old"
        file.write_text("new\n")
        assert await collect_ids(engine, make_job()) == IDS
        assert server.requests[-1][1]["authorization"] == "Bearer new"
