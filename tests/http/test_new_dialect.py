"""A wire API that is defined here alone: one dialect, one list of routes, nothing in `src`.

It streams lines of JSON and has its own errors, statuses, keep-alive frame and request id header.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.errors import BadRequest, DragomanError
from dragoman.events import Completion, Delta, Usage
from dragoman.http.app import App
from dragoman.http.router import Route
from dragoman.http.routes.shared.context import RouteContext
from dragoman.http.routes.shared.generation import make_generation_handler
from dragoman.protocols.dialect import AnswerInfo, Dialect, DialectContext
from dragoman.testing import Reply, ScriptedEngine
from dragoman.types import Prompt, Request
from tests.support.serving import RunningServer, make_scripted_app, run_app

PATH = "/lines"
KEEP_ALIVE = b"{}\n"


def encode_line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


class LineEncoder:
    """Encodes an answer as lines of JSON."""

    def __init__(self, answer: AnswerInfo, request_id: str) -> None:
        self._answer = answer
        self._request_id = request_id

    def start(self) -> list[bytes]:
        return [encode_line(model=self._answer.model, id=self._request_id)]

    def encode_delta(self, delta: Delta) -> list[bytes]:
        return [encode_line(text=delta.text)] if delta.text else []

    def end(self, usage: Usage) -> list[bytes]:
        return [encode_line(done=True, tokens=usage.completion)]

    def fail(self, error: DragomanError) -> list[bytes]:
        return [encode_line(failed=error.message)]

    def encode_whole(self, completion: Completion) -> bytes:
        [choice] = completion.build_choices()
        return json.dumps({"text": choice.text, "tokens": completion.usage.completion}).encode()


def decode(body: bytes, context: DialectContext) -> Request:
    fields = json.loads(body)
    if context.strict and set(fields) - {"prompt", "stream"}:
        raise BadRequest("There are unknown fields.")
    prompt = Prompt(content=fields["prompt"])
    return Request(model="scripted", prompts=(prompt,), stream=fields.get("stream", False))


def make_encoder(request: Request, answer: AnswerInfo, context: DialectContext) -> LineEncoder:
    return LineEncoder(answer, context.request_id)


def encode_error(error: DragomanError, request_id: str) -> bytes:
    return json.dumps({"failed": error.message, "id": request_id}).encode()


DIALECT: Dialect[Request] = Dialect(
    name="lines",
    decode=decode,
    make_encoder=make_encoder,
    encode_error=encode_error,
    get_error_status=lambda error: 418 if error.status == 400 else error.status,
    stream_content_type=b"application/x-ndjson",
    keep_alive_frame=KEEP_ALIVE,
    request_id_headers=(b"x-line-id",),
)


def make_routes(context: RouteContext) -> list[Route]:
    return [
        Route(
            path=PATH,
            method="POST",
            handler=make_generation_handler(context, DIALECT),
            summary="Generate lines.",
            dialects=(DIALECT,),
            streams=True,
        )
    ]


def make_app(engine: ScriptedEngine, **options: Any) -> App:
    app = make_scripted_app(engine, **options)
    for route in make_routes(app.context):
        app.router.add(route)
    return app


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_app(make_app(ScriptedEngine("Hello there!"), strict_params=True)) as server:
        yield server


def post(server: RunningServer, **fields: Any) -> httpx.Response:
    return httpx.post(server.url + PATH, json={"prompt": "hi", **fields}, timeout=60)


def read_lines(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_answer_is_sent_whole(server: RunningServer) -> None:
    response = post(server)
    assert response.headers["content-type"] == "application/json"
    assert response.json()["text"] == "Hello there!"
    assert response.json()["tokens"] > 0


def test_answer_is_streamed_as_lines(server: RunningServer) -> None:
    response = post(server, stream=True)
    first, *deltas, last = read_lines(response)
    assert first == {"model": "scripted", "id": response.headers["x-line-id"]}
    assert "".join(delta["text"] for delta in deltas) == "Hello there!"
    assert last == {"done": True, "tokens": post(server).json()["tokens"]}
    assert "x-request-id" not in response.headers


def test_error_has_the_form_and_status_of_the_dialect(server: RunningServer) -> None:
    response = post(server, unknown=1)
    assert response.status_code == 418
    assert response.json() == {
        "failed": "There are unknown fields.",
        "id": response.headers["x-line-id"],
    }
    missing = httpx.get(server.url + PATH)
    assert missing.status_code == 405
    assert missing.json()["failed"] == "Use POST for this path."


def test_error_in_a_stream_has_the_form_of_the_dialect() -> None:
    engine = ScriptedEngine(Reply("Hello there!", raise_at=1, error="ValueError"))
    with run_app(make_app(engine)) as server:
        lines = read_lines(post(server, stream=True))
        assert lines[-1] == {"failed": "The engine failed while processing this request."}


def test_keep_alive_frame_is_sent_while_the_engine_is_silent() -> None:
    engine = ScriptedEngine(Reply("Hello there!", hang_at=1))
    with run_app(make_app(engine, patience=0.02, ping=0.02)) as server:
        body = {"prompt": "hi", "stream": True}
        with httpx.stream("POST", server.url + PATH, json=body, timeout=60) as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            lines = [
                json.loads(line) for line, _ in zip(response.iter_lines(), range(4), strict=False)
            ]
        assert "model" in lines[0]
        assert lines[-1] == json.loads(KEEP_ALIVE)


def test_route_is_documented(server: RunningServer) -> None:
    document = httpx.get(server.url + "/openapi.json").json()
    content = document["paths"][PATH]["post"]["responses"]["200"]["content"]
    assert "application/x-ndjson" in content
