"""Lines of JSON stay whole in clients that split them at every line break of Unicode."""

from __future__ import annotations

from collections.abc import Iterator

import ollama
import pytest

from dragoman.testing import ScriptedEngine
from tests.support.batches import connect, encode_lines, make_line, start_batch, wait_ended
from tests.support.serving import RunningServer, serve_scripted

TEXT = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg é 😀"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    engine = ScriptedEngine(TEXT, tokens=True, context=4096)
    with serve_scripted(engine, store="sqlite://") as running:
        yield running


def test_streams_of_ollama(server: RunningServer) -> None:
    with ollama.Client(host=server.url) as client:
        chat = client.chat("scripted", [{"role": "user", "content": "hi"}], stream=True)
        assert "".join(part.message.content or "" for part in chat) == TEXT
        generated = client.generate("scripted", "hi", stream=True, logprobs=True)
        assert "".join(part.response or "" for part in generated) == TEXT


def test_files_of_batches(server: RunningServer) -> None:
    lines = [make_line("good\u2028"), make_line("bad\x85", {"model": "absent\u2029"})]
    with connect(server.url) as client:
        batch = wait_ended(client, start_batch(client, encode_lines(lines)).id)
        for file in (batch.output_file_id, batch.error_file_id):
            assert len(client.files.content(file or "").text.splitlines()) == 1
