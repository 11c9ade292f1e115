"""Batches through the `openai` client: every endpoint, every end, limits and hostile files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from dragoman.batches.validation import MAX_LINES, MAX_PROBLEMS
from dragoman.store.batches.rows import StoredBatch
from dragoman.testing import Reply, ScriptedEngine
from tests.support.batches import (
    CHAT,
    check_answered_once,
    connect,
    encode_lines,
    list_ids,
    make_line,
    read_results,
    run_batch,
    start_batch,
    upload,
    wait_ended,
    wait_for,
)
from tests.support.hostile_http import HostileServer, serve_hostile
from tests.support.serving import RunningServer, make_chat, poll_until, serve_scripted
from tests.support.stores import execute

LIMIT = 12 << 20  # bytes of a body
SCRIPT = [
    Reply("One, two", when="hang", hang_at=1),
    Reply("Half", when="break", raise_at=1),
    Reply("Hello there!"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    engine = ScriptedEngine(SCRIPT, tokens=True)
    with serve_hostile(engine, body_limit=LIMIT) as hostile:
        yield hostile


@pytest.fixture
def client(server: HostileServer) -> Iterator[OpenAI]:
    with connect(server.url) as client:
        yield client


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": make_chat("hi"),
    "/v1/completions": {"model": "scripted", "prompt": "hi"},
    "/v1/embeddings": {"model": "scripted", "input": ["hi", "ho"]},
    "/v1/responses": {"model": "scripted", "input": "hi"},
}


@pytest.mark.parametrize("endpoint", BODIES)
def test_every_endpoint_answers_as_over_http(
    server: HostileServer, client: OpenAI, endpoint: str
) -> None:
    lines = [make_line(f"r{n}", BODIES[endpoint], url=endpoint) for n in range(3)]
    lines.append(make_line("bad", {"model": "absent"} | BODIES[endpoint] | {"model": "absent"}))
    lines[-1]["url"] = endpoint
    batch = run_batch(client, encode_lines(lines), endpoint, metadata={"a": "b"})
    check_answered_once(client, batch, list_ids(lines))
    direct = server.send("POST", endpoint, json=BODIES[endpoint]).json()
    for result in read_results(client, batch.output_file_id):
        assert result["id"].startswith("batch_req_")
        assert result["error"] is None
        response = result["response"]
        assert response["status_code"] == 200
        assert response["request_id"].startswith("req_")
        assert response["body"].keys() == direct.keys()
        assert response["body"]["usage"] == direct["usage"]
    [error] = read_results(client, batch.error_file_id)
    assert (error["custom_id"], error["response"]["status_code"]) == ("bad", 404)
    assert error["response"]["body"]["error"]["code"] == "model_not_found"
    assert batch.usage is not None
    spent = direct["usage"]["total_tokens"]
    assert batch.usage.total_tokens == 3 * spent


def test_a_batch_as_clients_see_it(client: OpenAI) -> None:
    content = encode_lines(make_line(f"{n}") for n in range(5))
    started = start_batch(client, content, metadata={"a": "b"})
    assert started.status == "validating"
    assert started.output_file_id is None
    batch = wait_ended(client, started.id)
    assert (batch.object, batch.endpoint, batch.completion_window) == ("batch", CHAT, "24h")
    assert (batch.status, batch.metadata, batch.model) == ("completed", {"a": "b"}, "scripted")
    assert (batch.errors, batch.error_file_id) == (None, None)
    assert batch.expires_at == batch.created_at + 24 * 3600
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert None not in times
    assert times == sorted(times, key=lambda moment: moment or 0)
    ends = [batch.failed_at, batch.expired_at, batch.cancelling_at, batch.cancelled_at]
    assert ends == [None] * 4
    output = client.files.retrieve(batch.output_file_id or "")
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert batch.id in [other.id for other in client.batches.list(limit=1)]
    client.files.delete(batch.input_file_id)
    client.files.delete(output.id)
    assert client.batches.retrieve(batch.id).status == "completed"


def test_errors_of_lines_are_answers(client: OpenAI) -> None:
    """What is wrong with a request is the answer to its line; the others are answered."""
    bodies: dict[str, tuple[dict[str, Any], int, str | None]] = {
        "type": (make_chat(temperature="hot"), 400, "temperature"),
        "range": (make_chat(temperature=99), 400, "temperature"),
        "stream": (make_chat(stream=True), 400, "stream"),
        "empty": ({"model": "scripted"}, 400, "messages"),
        "engine": (make_chat("break"), 500, None),
    }
    lines = [make_line(name, body) for name, (body, _, _) in bodies.items()]
    batch = run_batch(client, encode_lines([*lines, make_line("fine")]))
    assert batch.status == "completed"
    check_answered_once(client, batch, [*bodies, "fine"])
    for error in read_results(client, batch.error_file_id):
        _, status, param = bodies[error["custom_id"]]
        assert error["response"]["status_code"] == status
        assert error["response"]["body"]["error"]["param"] == param


def test_a_response_in_the_background_is_rejected(client: OpenAI) -> None:
    body = BODIES["/v1/responses"] | {"background": True}
    line = make_line("a", body, url="/v1/responses")
    batch = run_batch(client, encode_lines([line]), "/v1/responses")
    [error] = read_results(client, batch.error_file_id)
    assert error["response"]["body"]["error"]["param"] == "background"


FINE = encode_lines([make_line("fine")])
INVALID: dict[str, tuple[bytes, list[tuple[str, int | None, str | None]]]] = {
    "empty": (b"", [("empty_file", None, None)]),
    "only blank lines": (b"\n \r\n" * 1000, [("empty_file", None, None)]),
    "no JSON": (FINE + b"hello\n", [("invalid_json_line", 2, None)]),
    "a list": (b"[]\n" + FINE, [("invalid_json_line", 1, None)]),
    "invalid UTF-8": (
        FINE.replace(b"fine", b"\xff\xfe") + FINE,
        [("invalid_json_line", 1, None)],
    ),
    "deep": (b"[" * 100_000 + b"\n" + FINE, [("invalid_json_line", 1, None)]),
    "no id": (
        encode_lines([make_line("a"), {"method": "POST", "url": CHAT, "body": {}}]),
        [("missing_required_parameter", 2, "custom_id")],
    ),
    "no body": (
        encode_lines([{"custom_id": "a", "method": "POST", "url": CHAT}]),
        [("missing_required_parameter", 1, "body")],
    ),
    "duplicate ids": (
        encode_lines([make_line("a"), make_line("b"), make_line("a"), make_line("b")]),
        [("duplicate_custom_id", 3, "custom_id"), ("duplicate_custom_id", 4, "custom_id")],
    ),
    "numbers as ids": (
        encode_lines([make_line("a") | {"custom_id": 1}]),
        [("invalid_custom_id", 1, "custom_id")],
    ),
    "long id": (encode_lines([make_line("a" * 513)]), [("invalid_custom_id", 1, "custom_id")]),
    "method": (encode_lines([make_line("a", method="GET")]), [("invalid_method", 1, "method")]),
    "url": (
        encode_lines([make_line("a", url="/v1/completions"), make_line("b", url="/admin/models")]),
        [("invalid_url", 1, "url"), ("invalid_url", 2, "url")],
    ),
    "body is text": (
        encode_lines([make_line("a") | {"body": "x"}]),
        [("invalid_request", 1, "body")],
    ),
    "giant line": (
        FINE + b'{"a": "' + b"a" * (LIMIT + 5000) + b'"}\n',
        [("line_too_long", 2, None)],
    ),
    "many problems": (
        b"x\n" * 200_000,
        [("invalid_json_line", n + 1, None) for n in range(MAX_PROBLEMS)],
    ),
    "millions of empty lines": (
        b"\n" * 5_000_000 + b"x\n",
        [("invalid_json_line", 5_000_001, None)],
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_file_fails_its_batch(client: OpenAI, name: str) -> None:
    content, expected = INVALID[name]
    batch = run_batch(client, content)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.in_progress_at is None
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert batch.errors is not None
    errors = batch.errors.data or []
    assert [(error.code, error.line, error.param) for error in errors] == expected
    assert all(error.message for error in errors)
    client.files.delete(batch.input_file_id)


def test_a_file_with_too_many_requests_fails_its_batch(client: OpenAI) -> None:
    tail = json.dumps(make_line(""))[len('{"custom_id": ""') :]
    lines = "".join(f'{{"custom_id": "{n}"{tail}\n' for n in range(MAX_LINES + 1))
    batch = run_batch(client, lines.encode())
    assert batch.errors is not None
    assert [error.code for error in batch.errors.data or []] == ["too_many_requests"]
    client.files.delete(batch.input_file_id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/messages"}, "endpoint"),
        ({"endpoint": "/admin/models/load"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "15d"}, "completion_window"),
        ({"input_file_id": "file-0"}, "input_file_id"),
        ({"input_file_id": "../../etc/passwd"}, "input_file_id"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            "output_expires_after.seconds",
        ),
    ],
)
def test_refused_batches(
    server: HostileServer, client: OpenAI, fields: dict[str, Any], param: str
) -> None:
    body = {"endpoint": CHAT, "completion_window": "24h"}
    body |= {"input_file_id": upload(client, FINE).id} | fields
    response = server.send("POST", "/v1/batches", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_file_for_other_purposes_is_refused(server: HostileServer, client: OpenAI) -> None:
    file = upload(client, FINE, "user_data")
    body = {"endpoint": CHAT, "completion_window": "24h", "input_file_id": file.id}
    response = server.send("POST", "/v1/batches", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input_file_id")


def is_hanging(server: HostileServer) -> bool:
    return server.engine.active > 0


def test_cancelling_ends_lines_in_progress(server: HostileServer, client: OpenAI) -> None:
    ids = ["fine", *(f"hang-{n}" for n in range(30))]
    batch = start_batch(client, encode_lines(map(make_line, ids)))
    wait_for(client, batch.id, lambda b: bool(b.request_counts and b.request_counts.completed))
    poll_until(lambda: is_hanging(server))
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.delete(batch.input_file_id)
    assert refused.value.code == "file_in_use"
    cancelling = client.batches.cancel(batch.id)
    assert cancelling.status in ("cancelling", "cancelled")
    assert cancelling.cancelling_at is not None
    ended = wait_ended(client, batch.id)
    assert ended.status == "cancelled"
    assert ended.cancelled_at is not None
    assert server.engine.active == 0
    check_answered_once(client, ended, ids)
    assert list_ids(read_results(client, ended.output_file_id)) == ["fine"]
    errors = read_results(client, ended.error_file_id)
    assert {error["error"]["code"] for error in errors} == {"batch_cancelled"}
    assert all(error["response"] is None for error in errors)
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_a_batch_that_has_ended_cannot_be_cancelled(client: OpenAI) -> None:
    batch = run_batch(client, FINE)
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(batch.id)
    with pytest.raises(openai.NotFoundError):
        client.batches.cancel("batch_0")


@pytest.mark.slow
def test_a_batch_expires(server: HostileServer, client: OpenAI) -> None:
    """Its window ends while a line hangs; all lines without an answer get an error."""
    ids = ["fine", "hang-1", "hang-2"]
    file = upload(client, encode_lines(map(make_line, ids)))
    now = int(time.time())
    row = StoredBatch(
        id="batch_expiring",
        owner="",
        endpoint=CHAT,
        completion_window="1m",
        input_file=file.id,
        output_file="file-expiring-output",
        error_file="file-expiring-errors",
        created=now - 57,
        expires_at=now + 3,
    )

    async def add() -> None:
        store = await server.running.app.runtime.state.get_store()
        await store.write(lambda tx: tx.batches.add(row))

    server.running.run_coroutine(add())
    run_batch(client, FINE)  # which makes the server look for batches at once
    ended = wait_ended(client, row.id)
    assert (ended.status, ended.expired_at is not None) == ("expired", True)
    check_answered_once(client, ended, ids)
    errors = read_results(client, ended.error_file_id)
    assert {error["error"]["code"] for error in errors} == {"batch_expired"}


# Limits, priorities and keys


def run_hanging(client: OpenAI, count: int) -> str:
    lines = [make_line(f"hang-{n}") for n in range(count)]
    return start_batch(client, encode_lines(lines)).id


def test_live_requests_run_beside_a_batch() -> None:
    """Lines have the lowest priority: they leave a slot free, and live requests overtake them."""
    engine = ScriptedEngine(SCRIPT, tokens=True, slots=2)
    with serve_scripted(engine, batch_requests=8) as running, connect(running.url) as client:
        name = run_hanging(client, 20)
        gate = poll_gate(running)
        poll_until(lambda: gate.count_waiting("batch") == 7)
        assert {job.priority for job in engine.jobs} == {"batch"}
        for _ in range(3):
            answer = httpx.post(f"{running.url}{CHAT}", json=make_chat("hi"), timeout=60)
            assert answer.status_code == 200
        assert engine.peak == 2
        client.batches.cancel(name)
        assert wait_ended(client, name).status == "cancelled"


def poll_gate(running: RunningServer) -> Any:
    poll_until(lambda: bool(running.app.runtime.services.models.list_loaded()))
    return running.get_gate()


@pytest.mark.parametrize("setting", [1, 3])
def test_at_most_so_many_lines_run_at_once(setting: int) -> None:
    engine = ScriptedEngine("Hello there!", tokens=True, pace=0.001)
    ids = [f"{n}" for n in range(12)]
    with serve_scripted(engine, batch_requests=setting) as running, connect(running.url) as client:
        content = encode_lines(map(make_line, ids))
        names = [start_batch(client, content).id for _ in range(2)]
        for name in names:
            check_answered_once(client, wait_ended(client, name), ids)
        assert engine.peak <= setting


def write_keys(path: Path, *entries: str) -> str:
    path.write_text("entries:\n" + "".join(f"- {{{entry}}}\n" for entry in entries))
    return str(path)


def test_lines_are_under_the_limits_of_their_key(tmp_path: Path) -> None:
    """A batch leaves a place for live requests of its key, and waits where a limit is reached."""
    limits = "concurrent_requests: 3, requests_per_minute: 1000"
    file = write_keys(tmp_path / "keys.yaml", f"name: ann, key: ann-key, limits: {{{limits}}}")
    engine = ScriptedEngine(SCRIPT, tokens=True)
    with (
        serve_scripted(engine, api_key_file=file) as running,
        connect(running.url, "ann-key") as client,
    ):
        name = run_hanging(client, 20)
        poll_until(lambda: engine.active == 2)
        live = client.chat.completions.create(**make_chat("hi"))
        assert live.choices[0].message.content == "Hello there!"
        assert engine.peak <= 3
        client.batches.cancel(name)
        assert wait_ended(client, name).status == "cancelled"


def test_a_line_that_exceeds_a_limit_is_an_error(tmp_path: Path) -> None:
    """One that can never fit is not tried again for ever."""
    limits = "tokens_per_minute: 100"
    file = write_keys(tmp_path / "keys.yaml", f"name: ann, key: ann-key, limits: {{{limits}}}")
    engine = ScriptedEngine("Hi.", tokens=True)
    with (
        serve_scripted(engine, api_key_file=file) as running,
        connect(running.url, "ann-key") as client,
    ):
        lines = [make_line("large", make_chat("x" * 200))]
        batch = run_batch(client, encode_lines(lines))
        [error] = read_results(client, batch.error_file_id)
        assert error["response"]["status_code"] == 429


def test_a_batch_opens_no_route_that_its_key_may_not_use(tmp_path: Path) -> None:
    scope = "routes: [/v1/files*, /v1/batches*]"
    file = write_keys(tmp_path / "keys.yaml", f"name: ann, key: ann-key, {scope}")
    engine = ScriptedEngine("Hi.", tokens=True)
    with (
        serve_scripted(engine, api_key_file=file) as running,
        connect(running.url, "ann-key") as client,
    ):
        batch = run_batch(client, FINE)
        [error] = read_results(client, batch.error_file_id)
        assert error["response"]["status_code"] == 403
        assert engine.started == 0


def test_a_batch_outlives_its_server_but_not_its_key(tmp_path: Path) -> None:
    """Another server with the same store goes on with it; without the key, lines get 401."""
    options: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/store.db"}
    with (
        serve_scripted(ScriptedEngine(SCRIPT), api_key=("ann", "bob"), **options) as running,
        connect(running.url, "ann") as ann,
        connect(running.url, "bob") as bob,
    ):
        kept, dropped = run_hanging(ann, 3), run_hanging(bob, 3)
        poll_until(lambda: running.get_gate().running == 6)
    with (
        serve_scripted("Hello.", api_key=("ann",), **options) as running,
        connect(running.url, "ann") as ann,
    ):
        batch = wait_ended(ann, kept)
        check_answered_once(ann, batch, [f"hang-{n}" for n in range(3)])
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 3
        with pytest.raises(openai.NotFoundError):
            ann.batches.retrieve(dropped)
        poll_until(lambda: has_ended(options["store"], dropped))
    with (
        serve_scripted("Hello.", api_key=("bob",), **options) as running,
        connect(running.url, "bob") as bob,
    ):
        batch = wait_ended(bob, dropped)
        errors = read_results(bob, batch.error_file_id)
        assert [error["response"]["status_code"] for error in errors] == [401] * 3


def has_ended(url: str, batch: str) -> bool:
    query = "SELECT id FROM batches WHERE id = :id AND ended IS NOT NULL"
    return bool(execute(url, query, id=batch))


def test_a_large_file_is_streamed(server: HostileServer, client: OpenAI) -> None:
    """The event loop is watched by the fixture; most lines are rejected, to be quick."""
    filler = "x" * 1_000_000
    ids = [f"{n}" for n in range(24)]
    lines = [make_line(name, make_chat(temperature=99) | {"user": filler}) for name in ids]
    batch = run_batch(client, encode_lines(lines))
    check_answered_once(client, batch, ids)
    client.files.delete(batch.input_file_id)
