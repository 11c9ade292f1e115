"""Upstream servers for tests: scripted workers in threads, and servers that answer from a table."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from dragoman import config, runtime
from dragoman.http.server import make_app
from dragoman.testing.byte_tokenizer import SPECIALS
from dragoman.testing.upstream.worker import ScriptedWorker
from dragoman.tokenizers.vocabulary import BYTE_CHARACTERS
from tests.support.serving import QUIET, RunningServer, run_app

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Frames = list[Any]  # of a stream; each is sent as JSON
# a status and a JSON body, or frames; a function gets the body of the request
Answer = tuple[int, Any] | Frames | Callable[[Any], "tuple[int, Any] | Frames"]


def write_tokenizer(
    directory: Path, *, specials: tuple[str, ...] = SPECIALS, template: str | None = TEMPLATE
) -> Path:
    """Write the tokenizer of scripted workers, whose ids are bytes, as a model directory."""
    directory.mkdir(parents=True, exist_ok=True)
    backend = Backend(models.BPE(vocab=dict(BYTE_CHARACTERS), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_special_tokens(list(specials))
    backend.save(str(directory / "tokenizer.json"))
    settings: dict[str, Any] = {"bos_token": specials[0], "eos_token": specials[-1]}
    if template is not None:
        settings["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


class WorkerThread:
    """A scripted worker with an event loop of its own."""

    def __init__(self, make_worker: Callable[[], ScriptedWorker]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="worker")
        self._thread.start()
        self.worker = self._run(self._start(make_worker))

    async def _start(self, make_worker: Callable[[], ScriptedWorker]) -> ScriptedWorker:
        worker = make_worker()
        await worker.start()
        return worker

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._run(self.worker.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@contextmanager
def run_worker(kind: Any, script: Any = "Hello.", **options: Any) -> Iterator[ScriptedWorker]:
    """Run a scripted worker; changes of its attributes are seen by the next request."""
    thread = WorkerThread(lambda: ScriptedWorker(kind, script, **{"context": 4096, **options}))
    try:
        yield thread.worker
    finally:
        thread.close()


class TableServer:
    """A server that answers from a table of paths, and records what it gets."""

    def __init__(
        self, routes: Mapping[str, Answer], api_key: str = "", *, is_up: bool = True
    ) -> None:
        self.routes = dict(routes)
        self.api_key = api_key
        self.requests: list[tuple[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.location = ""  # of all answers, where they are redirects
        table = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                table.answer(self, None)

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                table.answer(self, json.loads(self.rfile.read(length) or b"null"))

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.daemon_threads = True
        self._server.server_bind()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        if is_up:
            self.listen()

    def listen(self) -> None:
        """Accept connections; until then they are refused."""
        self._server.server_activate()
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        path = handler.path.partition("?")[0]
        self.requests.append((path, body))
        self.headers.append(dict(handler.headers))
        found: Any = self.routes.get(path, (404, {"error": {"message": "Not found"}}))
        if self.api_key and handler.headers.get("authorization") != f"Bearer {self.api_key}":
            found = (401, {"error": {"message": "Invalid API key"}})
        elif callable(found):
            found = found(body)
        is_stream = isinstance(found, list)
        status, content = (200, found) if is_stream else found
        if is_stream:
            parts = [
                frame if isinstance(frame, str) else json.dumps(frame, ensure_ascii=False)
                for frame in content
            ]
            data = "".join(f"data: {part}\n\n" for part in parts).encode(errors="backslashreplace")
        else:
            data = json.dumps(content).encode()
        handler.send_response(status)
        handler.send_header(
            "content-type", "text/event-stream" if is_stream else "application/json"
        )
        handler.send_header("content-length", str(len(data)))
        if self.location:
            handler.send_header("location", self.location)
        handler.end_headers()
        handler.wfile.write(data)

    def list_bodies(self, path: str) -> list[Any]:
        return [body for each, body in self.requests if each == path]

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(60)
        self._server.server_close()


@contextmanager
def run_table(
    routes: Mapping[str, Answer], api_key: str = "", *, is_up: bool = True
) -> Iterator[TableServer]:
    server = TableServer(routes, api_key, is_up=is_up)
    try:
        yield server
    finally:
        server.close()


def list_models(*names: str, owner: str = "someone", **fields: Any) -> Answer:
    return 200, {
        "object": "list",
        "data": [{"id": name, "owned_by": owner} | fields for name in names],
    }


def make_text_frames(*texts: str, finish: str = "stop", tokens: int | None = None) -> Frames:
    """Make the frames of `/v1/completions`."""
    count = len(texts) if tokens is None else tokens
    usage = {"prompt_tokens": 7, "completion_tokens": count}
    frames: Frames = [{"choices": [{"index": 0, "text": text}]} for text in texts]
    frames.append({"choices": [{"index": 0, "text": "", "finish_reason": finish}]})
    return [*frames, {"choices": [], "usage": usage}, "[DONE]"]


def make_chat_frames(
    *deltas: dict[str, Any], finish: str = "stop", usage: dict[str, Any] | None = None
) -> Frames:
    """Make the frames of `/v1/chat/completions`."""
    frames: Frames = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    frames.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    counts = {"prompt_tokens": 9, "completion_tokens": 4} if usage is None else usage
    return [*frames, {"choices": [], "usage": counts}, "[DONE]"]


@contextmanager
def serve_upstream(
    url: str, directory: Path, model: str = "", **options: Any
) -> Iterator[RunningServer]:
    """Serve the model of another server, as `dragoman serve --upstream URL MODEL` does."""
    defaults = {"port": 0, "store": "sqlite://", "models_dir": str(directory / "models")}
    settings = config.load(QUIET | defaults | {"upstream": url} | options)
    models = runtime.build_models(settings, model)
    with run_app(make_app(runtime.build_runtime(models, settings), local=True)) as server:
        server.run_coroutine(models.load(models.default_name))
        yield server
