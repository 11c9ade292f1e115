"""URLs, files and media in requests: nothing is fetched, opened or decoded that must not be."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import json
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.mcp.client import McpClient
from dragoman.mcp.types import McpServer, ToolsUnavailable
from dragoman.mcp.url_guard import UrlGuard
from dragoman.testing import ScriptedEngine
from tests.support.forbidden_port import watch_port
from tests.support.forbidden_urls import list_forbidden_urls
from tests.support.hostile_http import HostileServer, make_path, serve_hostile
from tests.support.hostile_media import (
    DISGUISES,
    FRAMES,
    MARKDOWN,
    SCHEMES,
    SECRET,
    TRAVERSALS,
    make_data_url,
    make_media_requests,
)
from tests.support.hostile_samples import MODEL, SAMPLES, list_samples
from tests.support.mcp_servers import answer_initialize, make_raw_app, serve_app
from tests.support.serving import make_chat, make_scripted_app

ROUTES = make_scripted_app().router.routes


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    engine = ScriptedEngine("Hello there!", tokens=True, context=8192)
    with serve_hostile(engine, mcp_timeout=5.0) as hostile:
        yield hostile


def check_media_rejected(server: HostileServer, url: str, step: int = 1) -> int:
    """Check that no place takes a URL; with a `step`, only some places, others for each URL."""
    count = 0
    requests = list(make_media_requests(url))
    for path, body in requests[zlib.crc32(url.encode()) % step :: step]:
        started = server.engine.started
        response = server.send("POST", path, json=body)
        assert response.status_code == 400, (path, body, response.text)
        assert server.engine.started == started
        assert SECRET not in response.text
        count += 1
    return count


def test_hole_45_urls_of_media_are_not_fetched(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    with watch_port() as (port, connections):
        urls = [f"http://{host}:{port}/a.png" for host in ("127.0.0.1", "localhost", "[::1]")]
        count = sum(check_media_rejected(server, url) for url in urls)
        assert not connections
    count_cases(count)


def test_hole_50_metadata_services_are_not_reached(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    urls = ["http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/"]
    count_cases(sum(check_media_rejected(server, url) for url in urls))


def test_hole_53_the_media_of_tool_results_are_not_fetched(server: HostileServer) -> None:
    """Media in a tool result are left out with a warning, since the client cannot avoid them."""
    with watch_port() as (port, connections):
        url = f"http://127.0.0.1:{port}/a.png"
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        image = {"type": "input_image", "image_url": url}
        output = {"type": "function_call_output", "call_id": "c", "output": [image]}
        items = [{"role": "user", "content": "a"}, call, output]
        response = server.send("POST", "/v1/responses", json={"model": MODEL, "input": items})
        assert response.status_code in (200, 400)
        block = {"type": "image", "source": {"type": "url", "url": url}}
        messages = [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": [block]}],
            },
        ]
        body = {"model": MODEL, "max_tokens": 9, "messages": messages}
        assert server.send("POST", "/v1/messages", json=body).status_code in (200, 400)
        assert not connections


def declare_tools(url: str, **fields: Any) -> dict[str, Any]:
    """Make a request whose tools are those of a remote server."""
    tool = {"type": "mcp", "server_label": "a", "server_url": url, "require_approval": "never"}
    return {**SAMPLES["/v1/responses"], "store": False, "tools": [{**tool, **fields}]}


@pytest.mark.parametrize("streamed", [False, True])
def test_hole_46_no_spelling_of_an_internal_host_is_connected_to(
    server: HostileServer, streamed: bool, count_cases: Callable[[int], None]
) -> None:
    """The tool server of a request: the only URL that a client can make the server connect to."""
    with watch_port() as (port, connections):
        urls = [url for url in list_forbidden_urls(port) if "example" not in url.lower()]
        urls = urls[int(streamed) :: 2]  # half of them each
        for url in urls:
            body = {**declare_tools(url), "stream": streamed}
            response = server.send("POST", "/v1/responses", json=body, allowed={502, 503})
            assert "Hello" not in response.text or response.status_code == 200, url
        assert not connections
    assert len(urls) > 60
    count_cases(len(urls))


@pytest.mark.parametrize("form", DISGUISES)
def test_hole_47_hosts_hidden_by_a_backslash_or_an_at_sign(
    server: HostileServer, form: str
) -> None:
    with watch_port() as (port, connections):
        url = form.format(port)
        response = server.send("POST", "/v1/responses", json=declare_tools(url), allowed={502, 503})
        assert response.status_code != 200 or "failed" in response.text or "error" in response.text
        check_media_rejected(server, url)
        assert not connections


@pytest.mark.parametrize("sample", list_samples(ROUTES, streamed=False), ids=str)
def test_hole_48_no_other_field_is_fetched(server: HostileServer, sample: Any) -> None:
    """Fields of other servers that take URLs, in every route that has a body."""
    with watch_port() as (port, connections):
        url = f"http://127.0.0.1:{port}/"
        for name in ("file_url", "url", "input_file", "callback_url", "webhook", "image", "proxy"):
            body = {**sample.body, name: url}
            response = server.send("POST", make_path(sample.route), json=body)
            assert response.status_code in (200, 400, 404)
        assert not connections


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_hole_49_redirects_are_not_followed(status: int) -> None:
    with watch_port() as (port, connections):
        location = {"location": f"http://127.0.0.1:{port}/", "content-type": "text/plain"}
        with serve_app(make_raw_app(lambda _: b"", status=status, headers=location)) as remote:
            with serve_hostile("Hello there!", mcp_hosts=[remote.host], mcp_timeout=5.0) as server:
                body = declare_tools(remote.url)
                server.send("POST", "/v1/responses", json=body, allowed={502, 503})
            assert remote.log.requests
        assert not connections


@pytest.mark.parametrize("status", [302, 308])
def test_hole_67_authorization_is_not_sent_to_another_server(status: int) -> None:
    """The server that is redirected to is allowed, too, and still gets nothing."""
    with serve_app(make_raw_app(answer_initialize)) as other:
        location = {"location": other.url, "content-type": "text/plain"}
        with serve_app(make_raw_app(lambda _: b"", status=status, headers=location)) as remote:
            hosts = [remote.host, other.host]
            with serve_hostile("Hello there!", mcp_hosts=hosts, mcp_timeout=5.0) as server:
                body = declare_tools(remote.url, authorization=SECRET, headers={"x-own": SECRET})
                response = server.send("POST", "/v1/responses", json=body, allowed={502, 503})
                assert SECRET not in response.text
            assert any(SECRET in str(request) for request in remote.log.requests)
        assert not other.log.requests


def test_hole_51_a_name_is_resolved_once(
    monkeypatch: pytest.MonkeyPatch, count_cases: Callable[[int], None]
) -> None:
    """From its second resolution on, a name is this machine: only checked addresses are used."""
    hosts: set[str] = set()

    async def fail_to_connect(_: object, request: httpx2.Request) -> httpx2.Response:
        hosts.add(request.url.host)
        raise httpx2.ConnectError("no")

    async def connect(answers: Iterator[list[str]]) -> None:
        async def resolve(host: str, port: int) -> list[str]:
            return next(answers)

        client = McpClient(UrlGuard(resolve=resolve), 5.0)
        with pytest.raises(ToolsUnavailable):
            await client.list_tools(McpServer(label="a", url="https://rebind.example/mcp"))
        await client.aclose()

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", fail_to_connect)
    private = itertools.cycle([["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["::1"]])
    for _ in range(100):
        asyncio.run(connect(itertools.chain([["93.184.216.34"]], private)))
        asyncio.run(connect(private))
    assert hosts == {"93.184.216.34"}
    count_cases(200)


def test_hole_52_text_never_causes_a_fetch(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    with watch_port() as (port, connections):
        url = f"http://127.0.0.1:{port}/a.png"
        for index, form in enumerate(MARKDOWN):
            text = form.replace("{}", url)
            body = make_chat(text, stream=bool(index % 2))
            assert server.send("POST", "/v1/chat/completions", json=body).status_code == 200
            assert server.send("POST", "/v1/completions", json={"model": MODEL, "prompt": text})
        assert not connections
    count_cases(2 * len(MARKDOWN))


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.parametrize("index", range(len(FRAMES)))
def test_hole_54_frames_of_videos_are_not_decoded(server: HostileServer, index: int) -> None:
    check_media_rejected(server, FRAMES[index])
    for name in ("media_io_kwargs", "mm_processor_kwargs"):
        body = make_chat("Hi", **{name: {"video": {"num_frames": 10**9, "fps": 1e9}}})
        assert server.send("POST", "/v1/chat/completions", json=body).status_code == 400


BOMBS = {
    "png header": PNG[:16] + (50_000).to_bytes(4, "big") * 2 + PNG[24:],
    "gif": b"GIF89a" + b"\xff\xff\xff\xff" + bytes(100),
    "webp": b"RIFF\xff\xff\xff\xffWEBPVP8L" + bytes(50),
    "tiff": b"II*\0\x08\0\0\0\xff\xff" + bytes(200),
    "wav": b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\xff\xff" + b"\xff" * 30,
    "zlib": gzip.compress(bytes(1 << 20)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_hole_55_media_are_not_decompressed(server: HostileServer, name: str) -> None:
    kind = "audio/wav" if name == "wav" else "image/png"
    check_media_rejected(server, make_data_url(kind, BOMBS[name]))


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP", "x"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/messages"])
def test_hole_55_compressed_bodies_are_refused(
    server: HostileServer, path: str, encoding: str
) -> None:
    body = gzip.compress(bytes(10 << 20))  # 10 KB, which would become 10 MB
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    response = server.send("POST", path, content=body, headers=headers)
    assert response.status_code == 415


IMAGES = {
    "one pixel": PNG,
    "no bytes": b"",
    "truncated": PNG[:40],
    "one row": PNG[:16] + (65_535).to_bytes(4, "big") + (1).to_bytes(4, "big") + PNG[24:],
    "16 bit": PNG[:24] + b"\x10" + PNG[25:],
    "palette": PNG[:25] + b"\x03" + PNG[26:],
    "not an image": b"%PDF-1.4",
}


@pytest.mark.parametrize("name", IMAGES)
def test_hole_56_odd_images_do_not_reach_the_engine(server: HostileServer, name: str) -> None:
    check_media_rejected(server, make_data_url("image/png", IMAGES[name]))


def test_hole_58_no_byte_of_a_file_is_in_an_answer(
    server: HostileServer, tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    count = 0
    for form in SCHEMES:
        url = form.replace("{}", str(path))
        count += check_media_rejected(server, url, step=4)
        body = declare_tools(url)
        response = server.send("POST", "/v1/responses", json=body, allowed={502, 503})
        assert SECRET not in response.text
    count_cases(count + len(SCHEMES))


def test_hole_59_local_media_cannot_be_named(
    server: HostileServer, tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "link").symlink_to(tmp_path / "secret")
    names = [f"file://{tmp_path}/media/{name}" for name in TRAVERSALS]
    names += TRAVERSALS
    count_cases(sum(check_media_rejected(server, name, step=4) for name in names))


def make_smuggled(url: str) -> Iterator[dict[str, Any]]:
    """Make fields that make other servers send their requests, and their keys, elsewhere."""
    names = [
        "api_base",
        "base_url",
        "api_url",
        "endpoint",
        "host",
        "server_url",
        "proxy",
        "spec_path",
    ]
    for name in names:
        yield {name: url}
        yield {"user_config": {name: url}}
        yield {"user_config": {"model_list": [{"litellm_params": {name: url, "model": "x"}}]}}
        yield {"litellm_params": {name: url}}
        yield {"metadata": {name: url}}
    yield {"model": f"openai/{url}"}
    yield {"model": url}


def test_hole_66_no_field_leads_requests_elsewhere(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    with watch_port() as (port, connections):
        count = 0
        for fields in make_smuggled(f"http://127.0.0.1:{port}/v1"):
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/embeddings"):
                response = server.send("POST", path, json={**SAMPLES[path], **fields})
                assert response.status_code in (200, 400, 404)
                count += 1
        assert not connections
    count_cases(count)


GARBAGE = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"\xff\xfe",
    b"[[[[",
    b'{"jsonrpc":"2.0"}',
    b"NaN",
    b"0" * 5000,
]
GARBAGE += [b'{"jsonrpc":"1.0","id":1,"result":{}}', b'{"jsonrpc":"2.0","id":"x","result":5}']
GARBAGE += [b'{"jsonrpc":"2.0","id":1,"error":5}', b'{"jsonrpc":"2.0","id":1,"error":{"code":"x"}}']
GARBAGE += [b'{"jsonrpc":"2.0","id":1,"result":{"tools":5}}', b"data: x\n\n", b"\0" * 100]


def make_garbage(chooser: random.Random) -> bytes:
    """Mutate one of the messages."""
    data = bytearray(chooser.choice(GARBAGE) or b"{}")
    for _ in range(chooser.randint(0, 4)):
        data[chooser.randrange(len(data))] = chooser.randrange(256)
    return bytes(data)


def test_hole_94_malformed_messages_of_a_tool_server_affect_one_request(
    count_cases: Callable[[int], None],
) -> None:
    chooser, count = random.Random(94), 24
    with (
        serve_app(make_raw_app(lambda _: make_garbage(chooser))) as remote,
        serve_hostile("Hello there!", mcp_hosts=[remote.host], mcp_timeout=1.0) as server,
    ):
        for index in range(count):
            body = {**declare_tools(remote.url), "stream": bool(index % 2)}
            server.send("POST", "/v1/responses", json=body, allowed={502, 503})
            if index % 8 == 0:
                assert server.send("POST", "/v1/chat/completions", json=make_chat()).is_success
    count_cases(count)


def test_hole_94_tool_servers_that_disconnect_affect_one_request() -> None:
    with watch_port() as (port, connections):  # accepts, and closes at once
        host = f"127.0.0.1:{port}"
        with serve_hostile("Hello there!", mcp_hosts=[host], mcp_timeout=2.0) as server:
            for index in range(5):
                body = {**declare_tools(f"http://{host}/mcp"), "stream": bool(index % 2)}
                response = server.send("POST", "/v1/responses", json=body, allowed={502, 503})
                assert json.dumps(host) not in response.text
                assert server.send("POST", "/v1/chat/completions", json=make_chat()).is_success
        assert connections
