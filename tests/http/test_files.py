"""Files: uploads, lists, downloads and deletions, and what hostile clients send."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest
from openai import OpenAI

from dragoman.testing import Reply, ScriptedEngine
from tests.support.batches import connect
from tests.support.hostile_http import KEYS, OTHER, USER, HostileServer, serve_hostile
from tests.support.serving import make_chat, poll_until, serve_scripted

FILES = "/v1/files"
BOUNDARY = "abc"
LIMIT = 3 << 20
QUOTA = 6 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    script = [Reply("I read it.", when="the secret word"), Reply("Nothing.")]
    engine = ScriptedEngine(script, tokens=True)
    with serve_hostile(engine, file_size=LIMIT, files_size=QUOTA, **KEYS) as hostile:
        yield hostile


@pytest.fixture
def client(server: HostileServer) -> Iterator[OpenAI]:
    """The client of a user, whose files are deleted in the end."""
    with connect(server.url, USER) as client:
        yield client
        for file in client.files.list():
            client.files.delete(file.id)


def make_form(parts: list[tuple[str, bytes]], end: bytes = b"--abc--\r\n") -> bytes:
    """Make a form of parts, each with its header."""
    body = b""
    for header, data in parts:
        head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {header}\r\n\r\n"
        body += head.encode("utf-8", "surrogateescape") + data + b"\r\n"
    return body + end


PURPOSE = ('name="purpose"', b"user_data")
CONTENT = ('name="file"; filename="a.txt"', b"some text")


def send_form(
    server: HostileServer, body: bytes, key: str = USER, **headers: str
) -> httpx.Response:
    content_type = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    return server.send("POST", FILES, key=key, content=body, headers=content_type | headers)


def test_the_client_of_openai_manages_files(client: OpenAI) -> None:
    content = random.Random(1).randbytes(700_000)  # of several chunks
    created = client.files.create(file=("input.jsonl", content), purpose="batch")
    assert (created.object, created.purpose) == ("file", "batch")
    assert (created.filename, created.bytes) == ("input.jsonl", len(content))
    assert created.expires_at == pytest.approx(created.created_at + 30 * 24 * 3600, abs=5)
    assert client.files.retrieve(created.id) == created
    assert client.files.content(created.id).read() == content
    expiring = client.files.create(
        file=("b.txt", b"b"),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert expiring.expires_at == pytest.approx(expiring.created_at + 3600, abs=5)
    assert {file.id for file in client.files.list()} == {created.id, expiring.id}
    assert [file.id for file in client.files.list(purpose="user_data")] == [expiring.id]
    deleted = client.files.delete(created.id)
    assert (deleted.id, deleted.deleted) == (created.id, True)
    assert [file.id for file in client.files.list()] == [expiring.id]


def test_lists_have_pages(client: OpenAI) -> None:
    names = {client.files.create(file=(f"{n}", b"a"), purpose="vision").id for n in range(5)}
    orders: tuple[Literal["asc", "desc"], ...] = ("asc", "desc")
    for order in orders:
        page = client.files.list(limit=2, order=order)
        assert page.has_more
        assert len(page.data) == 2
        assert {file.id for file in page} == names  # which gets the other pages
    answer = httpx.get(
        f"{client.base_url}files?limit=2&after=x", headers={"authorization": f"Bearer {USER}"}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


REFUSED: dict[str, tuple[bytes, int, str | None]] = {
    "no purpose": (make_form([CONTENT]), 400, "purpose"),
    "wrong purpose": (make_form([CONTENT, ('name="purpose"', b"fine-tune")]), 400, "purpose"),
    "no file": (make_form([PURPOSE]), 400, "file"),
    "two files": (make_form([PURPOSE, CONTENT, CONTENT]), 400, "file"),
    "two purposes": (make_form([PURPOSE, PURPOSE, CONTENT]), 400, "purpose"),
    "long field": (make_form([('name="purpose"', b"a" * 5000), CONTENT]), 400, "purpose"),
    "no end": (make_form([PURPOSE, CONTENT], end=b""), 400, None),
    "no form": (b"{}", 400, None),
    "many parts": (make_form([('name="a"', b"")] * 1000), 400, None),
    "expires too soon": (
        make_form(
            [
                PURPOSE,
                CONTENT,
                ('name="expires_after[anchor]"', b"created_at"),
                ('name="expires_after[seconds]"', b"3599"),
            ]
        ),
        400,
        "expires_after.seconds",
    ),
    "expires without anchor": (
        make_form([PURPOSE, CONTENT, ('name="expires_after[seconds]"', b"3600")]),
        400,
        "expires_after.anchor",
    ),
    "too large": (make_form([PURPOSE, (CONTENT[0], b"a" * (LIMIT + 1))]), 413, None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_uploads_store_nothing(server: HostileServer, client: OpenAI, name: str) -> None:
    body, status, param = REFUSED[name]
    response = send_form(server, body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert list(client.files.list()) == []
    assert count_rows(server) == 0


def count_rows(server: HostileServer) -> int:
    """Count the bytes of all files in the store, complete or not."""

    async def count() -> int:
        store = await server.running.app.runtime.state.get_store()
        return await store.read(lambda tx: tx.files.sum_bytes())

    total: int = server.running.run_coroutine(count())
    return total


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": ""}, 415),
        ({"content-type": "multipart/form-data"}, 400),
        ({"content-type": "multipart/form-data; boundary=" + "x" * 5000}, 400),
        ({"content-encoding": "gzip"}, 415),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_refused_headers(
    server: HostileServer, client: OpenAI, headers: dict[str, str], status: int
) -> None:
    assert send_form(server, make_form([PURPOSE, CONTENT]), **headers).status_code == status
    assert list(client.files.list()) == []


def test_an_announced_file_that_is_too_large_is_refused_before_it_is_sent(
    server: HostileServer,
) -> None:
    headers = [
        ("x-api-key", USER),
        ("content-type", "multipart/form-data; boundary=abc"),
        ("content-length", str(1 << 40)),
    ]
    assert server.send_raw("POST", FILES, headers).status == 413


def test_a_quota_counts_the_files_of_one_key(server: HostileServer, client: OpenAI) -> None:
    part = b"a" * (QUOTA // 3)
    names = [client.files.create(file=("a", part), purpose="user_data").id for _ in range(3)]
    over = send_form(server, make_form([PURPOSE, (CONTENT[0], part)]))
    assert (over.status_code, over.json()["error"]["code"]) == (413, "quota_exceeded")
    other = send_form(server, make_form([PURPOSE, (CONTENT[0], part)]), key=OTHER)
    assert other.status_code == 200
    server.send("DELETE", f"{FILES}/{other.json()['id']}", key=OTHER)
    client.files.delete(names[0])
    assert send_form(server, make_form([PURPOSE, (CONTENT[0], part)])).status_code == 200


@pytest.mark.parametrize(
    ("stored", "advice"),
    [(0, "larger than the 400,000 bytes"), (200_000, "take 200,000 of 400,000")],
)
def test_a_file_over_the_quota_says_what_to_delete(stored: int, advice: str) -> None:
    with serve_hostile(ScriptedEngine("x"), files_size=400_000, **KEYS) as hostile:
        for size in filter(None, (stored, 500_000 - stored)):
            response = send_form(hostile, make_form([PURPOSE, (CONTENT[0], b"a" * size)]))
    assert response.status_code == 413
    assert advice in response.json()["error"]["message"]


def test_unknown_fields_are_reported(server: HostileServer, client: OpenAI) -> None:
    response = send_form(server, make_form([PURPOSE, CONTENT, ('name="mood"', b"good")]))
    assert response.status_code == 200
    assert "`mood` is unknown" in response.headers["x-dragoman-warning"]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("../../../etc/passwd", "passwd"),
        ("/etc/cron.d/x", "x"),
        ("..\\\\..\\\\boot.ini", "boot.ini"),
        ("..", "file"),
        ("a%0D%0Ab%22.txt", 'ab".txt'),
        ("x" * 3000, "x" * 255),
        ("\udcff\udcfe", "\ufffd\ufffd"),
        ("$(id)`id`;'--", "$(id)`id`;'--"),
    ],
)
def test_the_name_of_a_file_is_a_label(
    server: HostileServer, client: OpenAI, sent: str, kept: str
) -> None:
    response = send_form(server, make_form([PURPOSE, (f'name="file"; filename="{sent}"', b"a")]))
    assert response.status_code == 200
    assert response.json()["filename"] == kept
    assert client.files.retrieve(response.json()["id"]).filename == kept


def test_a_disconnect_leaves_nothing(server: HostileServer) -> None:
    head = (
        f"POST {FILES} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {USER}\r\n"
        f"content-type: multipart/form-data; boundary={BOUNDARY}\r\ncontent-length: 2000000\r\n\r\n"
    )
    body = make_form([(CONTENT[0], b"a" * 1_000_000)], end=b"")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        poll_until(lambda: count_rows(server) > 0)
    poll_until(lambda: count_rows(server) == 0)


def test_a_form_in_single_bytes(server: HostileServer, client: OpenAI) -> None:
    body = make_form([PURPOSE, CONTENT])
    headers = [("x-api-key", USER), ("content-type", "multipart/form-data; boundary=abc")]
    response = server.send_raw("POST", FILES, headers, [body[i : i + 1] for i in range(len(body))])
    assert response.status == 200
    assert [file.bytes for file in client.files.list()] == [len(CONTENT[1])]


def test_a_file_expires(server: HostileServer, client: OpenAI) -> None:
    file = client.files.create(file=("a", b"a"), purpose="user_data")

    async def expire() -> None:
        store = await server.running.app.runtime.state.get_store()
        entry = server.running.app.runtime.keys.find(USER.encode())
        assert entry is not None
        owner = entry.owner
        await store.write(lambda tx: tx.files.finish(owner, file.id, expires=1.0))

    server.running.run_coroutine(expire())
    for path in (f"{FILES}/{file.id}", f"{FILES}/{file.id}/content"):
        assert server.send("GET", path, key=USER).status_code == 404
    assert list(client.files.list()) == []


def make_parts(file: str) -> list[tuple[str, dict[str, Any]]]:
    """Make requests of every wire API that refer to a file."""
    content = [{"type": "file", "file": {"file_id": file}}]
    item = {"role": "user", "content": [{"type": "input_file", "file_id": file}]}
    block = {"type": "document", "source": {"type": "file", "file_id": file}}
    return [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]}),
        ("/v1/responses", {"input": [item]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [block]}], "max_tokens": 50}),
    ]


def test_content_parts_refer_to_files_of_their_owner(server: HostileServer, client: OpenAI) -> None:
    file = client.files.create(file=("notes.txt", b"the secret word"), purpose="user_data")
    for path, body in make_parts(file.id):
        answer = server.send("POST", path, key=USER, json={"model": "scripted"} | body)
        assert (answer.status_code, "I read it." in answer.text) == (200, True), answer.text
        errors = []
        for key, name in ((OTHER, file.id), (USER, "file-0")):
            body = dict(make_parts(name))[path]
            refused = server.send("POST", path, key=key, json={"model": "scripted"} | body)
            assert refused.status_code == 400
            errors.append(refused.json()["error"]["message"])
        assert errors[0] == errors[1]  # neither says whether another owner has it


def test_a_server_without_keys_has_files() -> None:
    with serve_scripted() as running, connect(running.url) as client:
        file = client.files.create(file=("a", b"abc"), purpose="user_data")
        assert client.files.content(file.id).read() == b"abc"
        assert (
            httpx.head(f"{running.url}{FILES}/{file.id}/content").headers["content-length"] == "3"
        )
        body = make_chat() | {"store": True}
        assert httpx.post(f"{running.url}/v1/chat/completions", json=body).status_code == 200
