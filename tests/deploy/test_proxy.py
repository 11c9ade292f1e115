"""nginx with our configuration passes streams and WebSockets through."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
from collections.abc import Iterator

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.deploy.test_image import find_free_port
from tests.support.paths import ROOT
from tests.support.serving import make_chat, poll_until, serve_scripted

HOST = "models.example.com"
MAIN = """
daemon off; pid {folder}/pid; error_log stderr; worker_processes 1;
events {{}}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    include {folder}/dragoman.conf;
}}
"""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ssl.SSLContext]]:
    """Run nginx with the file in deploy/; only addresses and file names are changed."""
    folder = tmp_path_factory.mktemp("nginx")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", f"/CN={HOST}", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    with serve_scripted(allowed_host=(HOST, "127.0.0.1")) as server:
        port = find_free_port()
        text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
        text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        text = re.sub(r"/etc/\S+/fullchain.pem", str(certificate), text)
        text = re.sub(r"/etc/\S+/privkey.pem", str(key), text)
        (folder / "dragoman.conf").write_text(text)
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
        context = ssl.create_default_context(cafile=str(certificate))
        with subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf")]) as process:
            poll_until((folder / "pid").exists)
            yield f"127.0.0.1:{port}", context
            process.terminate()


def test_stream_passes_unbuffered(proxy: tuple[str, ssl.SSLContext]) -> None:
    address, context = proxy
    with (
        httpx.Client(verify=context) as client,
        client.stream(
            "POST", f"https://{address}/v1/chat/completions", json=make_chat(stream=True)
        ) as response,
    ):
        chunks = [chunk for chunk in response.iter_raw() if chunk]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert b"[DONE]" in chunks[-1]


def test_websocket_passes(proxy: tuple[str, ssl.SSLContext]) -> None:
    address, context = proxy

    async def talk() -> str:
        async with connect(f"wss://{address}/v1/responses", ssl=context) as websocket:
            request = {"type": "response.create", "model": "scripted", "input": "hi"}
            await websocket.send(json.dumps(request))
            return str(json.loads(await websocket.recv())["type"])

    assert asyncio.run(talk()) == "response.created"
