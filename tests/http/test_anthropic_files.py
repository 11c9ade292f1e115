"""Anthropic's client uploads, lists, reads and deletes files, and refers to them in messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import anthropic
import httpx
import pytest

from dragoman.testing import ScriptedEngine
from tests.support.media_files import make_image
from tests.support.serving import RunningServer, serve_scripted

ANTHROPIC = {"anthropic-version": "2023-06-01", "anthropic-beta": "files-api-2025-04-14"}


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine("Hello", tokens=True, context=8192, modalities=("text", "image"))


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[RunningServer]:
    with serve_scripted(engine, store="sqlite://") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as opened:
        yield opened


@pytest.mark.parametrize("kind", ["files", "beta"])
def test_whole_life_of_a_file(client: anthropic.Anthropic, kind: str) -> None:
    files: Any = client.files if kind == "files" else client.beta.files
    data = b"The moon is made of cheese."
    uploaded = files.upload(file=("notes.txt", data, "text/plain"))
    assert (uploaded.type, uploaded.filename, uploaded.size_bytes) == ("file", "notes.txt", 27)
    assert (uploaded.mime_type, uploaded.downloadable) == ("text/plain", True)
    assert uploaded.expires_at > uploaded.created_at
    assert files.retrieve_metadata(uploaded.id) == uploaded
    assert uploaded.id in [item.id for item in files.list()]
    assert files.download(uploaded.id).read() == data
    deleted = files.delete(uploaded.id)
    assert (deleted.id, deleted.type) == (uploaded.id, "file_deleted")
    with pytest.raises(anthropic.NotFoundError) as caught:
        files.retrieve_metadata(uploaded.id)
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"


def test_pages_of_files(client: anthropic.Anthropic, server: RunningServer) -> None:
    ids = [client.files.upload(file=(f"{n}.txt", b"x")).id for n in range(5)]
    listed = [item.id for item in client.files.list(limit=2)]
    assert len(listed) == len(set(listed))
    assert set(listed) >= set(ids)
    # as older clients continue
    page = httpx.get(f"{server.url}/v1/files?limit=2", headers=ANTHROPIC).json()
    assert (page["has_more"], page["last_id"]) == (True, page["data"][-1]["id"])
    url = f"{server.url}/v1/files?limit=2&after_id={page['last_id']}"
    rest = httpx.get(url, headers=ANTHROPIC).json()
    assert [item["id"] for item in page["data"] + rest["data"]] == listed[:4]


def test_both_apis_have_the_same_files(client: anthropic.Anthropic, server: RunningServer) -> None:
    file = client.files.upload(file=("a.txt", b"x")).id
    described = httpx.get(f"{server.url}/v1/files/{file}").json()
    assert (described["object"], described["purpose"]) == ("file", "user_data")


def test_files_expire_when_the_client_says(client: anthropic.Anthropic) -> None:
    file = client.files.upload(file=("a.txt", b"x"), expires_in_seconds=7200)
    assert file.expires_at is not None
    assert file.expires_at - file.created_at == timedelta(hours=2)
    with pytest.raises(anthropic.BadRequestError, match="expires_in_seconds"):
        client.files.upload(file=("a.txt", b"x"), expires_in_seconds=60)


@pytest.mark.parametrize("query", ["ids=file_1", "scope_id=x", "before_id=file_1", "limit=0"])
def test_query_that_is_not_supported_is_named(server: RunningServer, query: str) -> None:
    answer = httpx.get(f"{server.url}/v1/files?{query}", headers=ANTHROPIC)
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert query.partition("=")[0] in answer.json()["error"]["message"]


def test_messages_refer_to_files(client: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    picture = client.files.upload(file=("a.png", make_image(), "image/png")).id
    text = client.files.upload(file=("notes.txt", b"The moon is cheese.", "text/plain")).id
    content: Any = [
        {"type": "image", "source": {"type": "file", "file_id": picture}},
        {"type": "document", "source": {"type": "file", "file_id": text}},
        {"type": "text", "text": "What is it?"},
    ]
    answer = client.beta.messages.create(
        model="scripted",
        max_tokens=10,
        messages=[{"role": "user", "content": content}],
        betas=["files-api-2025-04-14"],
    )
    assert answer.content[0].type == "text"
    job = engine.jobs[-1]
    assert len(job.media) == 1
    assert isinstance(job.prompt, list)
    assert engine.tokenizer is not None
    assert "The moon is cheese." in engine.tokenizer.decode(job.prompt)
