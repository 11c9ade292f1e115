"""Batches whose lines have pictures: in the line, in uploaded files, and at URLs."""

from __future__ import annotations

from typing import Any

from dragoman.testing import ScriptedEngine
from tests.support.batches import MODEL, connect, encode_lines, make_line, read_results, run_batch
from tests.support.media_files import make_image, to_data_url
from tests.support.serving import serve_scripted

RESPONSES = "/v1/responses"


def make_chat(part: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": "What is it?"}, part]
    return {"model": MODEL, "messages": [{"role": "user", "content": content}]}


def test_lines_have_pictures() -> None:
    """A picture that cannot be used is the error of its line."""
    engine = ScriptedEngine("Red.", tokens=True, context=8192, modalities=("text", "image"))
    url = to_data_url(make_image(), "image/png")
    with serve_scripted(engine, store="sqlite://") as server, connect(server.url) as client:
        file = client.files.create(file=("a.png", make_image()), purpose="vision").id
        bodies = {
            "data": make_chat({"type": "image_url", "image_url": {"url": url}}),
            "file": make_chat({"type": "file", "file": {"file_id": file}}),
            "text": make_chat({"type": "text", "text": "Nothing."}),
            "url": make_chat({"type": "image_url", "image_url": {"url": "https://a.example/b"}}),
            "broken": make_chat({"type": "image_url", "image_url": {"url": url[:60]}}),
            "missing": make_chat({"type": "file", "file": {"file_id": "file-none"}}),
        }
        lines = [make_line(name, body) for name, body in bodies.items()]
        batch = run_batch(client, encode_lines(lines))
        statuses = {
            result["custom_id"]: result["response"]["status_code"]
            for file_id in (batch.output_file_id, batch.error_file_id)
            for result in read_results(client, file_id)
        }
        assert statuses == {
            **dict.fromkeys(("data", "file", "text"), 200),
            **dict.fromkeys(("url", "broken", "missing"), 400),
        }
        assert sum(len(job.media) for job in engine.jobs) == 2
        image = {"type": "input_image", "file_id": file}
        item = {"role": "user", "content": [image]}
        body = {"model": MODEL, "input": [item], "store": False}
        response = make_line("response", body, url=RESPONSES)
        batch = run_batch(client, encode_lines([response]), endpoint=RESPONSES)
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 1
        assert len(engine.jobs[-1].media) == 1
