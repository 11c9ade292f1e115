"""The scripted worker: routes, faults, and counters for the test that owns it.

Routes that generate play the script through a `ScriptedEngine`, in the frames of the server that
the worker stands for (`apis`). The other routes answer what a client asks before it generates:
models, version, properties, tokens of texts. `WorkerFaults` say what goes wrong, and for how many
requests; the test waits for conditions on the counters instead of sleeping.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.testing.replies import Script
from dragoman.testing.scripted import ScriptedEngine
from dragoman.testing.step_clock import ConditionWaiters
from dragoman.testing.upstream.apis import (
    IncrementalSglangRequest,
    LlamaServerRequest,
    SglangRequest,
    VllmRequestApi,
    WorkerApi,
    WorkerKind,
    encode,
)
from dragoman.testing.upstream.server import LoopbackServer, WorkerRequest
from dragoman.types import Job, Json, Step

GENERATING_PATHS = {
    "llama-server": ("/completion",),
    "vllm": ("/inference/v1/generate", "/v1/completions"),
    "sglang": ("/generate",),
}
PROMPT_FIELDS = frozenset({"prompt", "token_ids", "input_ids"})
IdFault: TypeAlias = Literal["out_of_range", "text", "missing", "fewer"]
ALWAYS = 1 << 30


class WorkerFaults(Struct, frozen=True, kw_only=True):
    """What goes wrong with requests that generate. Frames are counted from 0."""

    times: int = ALWAYS  # requests that it happens to
    closes_before_headers: bool = False
    close_at: int | None = None  # frames before the connection breaks
    hang_at: int | None = None  # frames before nothing comes any more, until `release`
    status: int | None = None  # answered instead
    retry_after: str | None = None  # with the status
    location: str | None = None  # likewise, of a redirect
    message: str = "The script makes the worker fail here."
    ids: IdFault | None = None
    error_at: int | None = None  # frames before an error inside the stream
    sends_pings: bool = False  # comments while it hangs


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """How the server appears."""

    model: str = "scripted"
    api_key: str = ""  # that requests must have
    tls: ssl.SSLContext | None = None
    is_cumulative: bool = True  # streams of SGLang repeat the whole answer in each frame
    port: int = 0  # 0 is any


class ScriptedWorker:
    """A server that plays a script. Use it as an asynchronous context manager.

    `settings` are the fields of `WorkerSettings`, and those of `ScriptedEngine`, which plays the
    script; `engine` is that engine.
    """

    def __init__(self, kind: WorkerKind, script: Script = "Hello.", **settings: Json) -> None:
        own = {
            name: settings.pop(name)
            for name in WorkerSettings.__struct_fields__
            if name in settings
        }
        self.settings = WorkerSettings(**own)
        self.kind = kind
        self.model = self.settings.model
        self.api_key = self.settings.api_key
        self.engine = ScriptedEngine(script, tokens=True, **settings)
        self.faults: WorkerFaults | None = None
        self.enforces_grammars = True
        self.disabled_paths: set[str] = set()  # answered with 404
        self.hanging_paths: set[str] = set()
        self.token_offset = 0  # added to the tokens of texts, for another tokenizer
        self.requests: deque[tuple[str, Json]] = deque(maxlen=1000)
        self.generating = 0  # requests that are being answered
        self._uses = 0
        self._scheme = "http" if self.settings.tls is None else "https"
        self._server = LoopbackServer(self._answer, self.settings.tls, self.settings.port)
        self._released = asyncio.Event()
        self._waiters = ConditionWaiters(self)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.port}"

    @property
    def accepted_connections(self) -> int:
        return self._server.accepted

    async def __aenter__(self) -> ScriptedWorker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; after `stop`, on the same port again."""
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    def set_faults(self, faults: WorkerFaults | None) -> None:
        self.faults, self._uses = faults, 0
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let the requests go on that hang."""
        self._released.set()

    def close_idle(self) -> None:
        """Close the connections that wait for a request."""
        self._server.close_idle()

    def count_requests(self, path: str) -> int:
        return sum(path == each for each, _ in self.requests)

    async def wait_until(
        self, condition: Callable[[ScriptedWorker], bool], timeout: float = 60.0
    ) -> None:
        """Return when the condition is true, which is looked at when requests begin and end."""
        await self._waiters.wait_until(condition, timeout)

    # routes

    def _has_key(self, request: WorkerRequest) -> bool:
        sent = request.headers.get("authorization", "").encode()
        return not self.api_key or hmac.compare_digest(sent, f"Bearer {self.api_key}".encode())

    async def _answer(self, request: WorkerRequest) -> None:
        path, _, _ = request.path.partition("?")
        body = request.read_json()
        self.requests.append((path, body))
        self._waiters.notify()
        if not self._has_key(request):
            request.send_json({"error": {"message": "Invalid API key"}}, 401)
        elif path in self.hanging_paths:
            await self._released.wait()
        elif path in self.disabled_paths:
            request.send_json({"error": {"message": "Not found"}}, 404)
        elif path in GENERATING_PATHS[self.kind] and PROMPT_FIELDS.isdisjoint(body):
            request.send_json({"error": {"message": "Field required"}}, 400)
        elif path in GENERATING_PATHS[self.kind]:
            await self._generate(request, path, body)
        else:
            self._answer_other(request, path, body)

    def _answer_other(self, request: WorkerRequest, path: str, body: Mapping[str, Json]) -> None:
        match path:
            case "/health":
                request.send_json({"status": "ok"})
            case "/v1/models":
                request.send_json({"object": "list", "data": [self.describe_model()]})
            case "/tokenize":
                text = body.get("content", body.get("prompt", ""))
                request.send_json({"tokens": self.tokenize(text, body)})
            case "/props" if self.kind == "llama-server":
                request.send_json(self.describe_props())
            case "/version" if self.kind == "vllm":
                request.send_json({"version": "0.32.0"})
            case "/model_info" | "/get_model_info" if self.kind == "sglang":
                request.send_json({"model_path": self.model, "tokenizer_path": self.model})
            case "/server_info" | "/get_server_info" if self.kind == "sglang":
                request.send_json(
                    {
                        "version": "0.5.23",
                        "incremental_streaming_output": not self.settings.is_cumulative,
                    }
                )
            case _:
                request.send_json({"error": {"message": "Not found"}}, 404)

    def describe_model(self) -> dict[str, Json]:
        """Return the entry of `/v1/models`."""
        owner = {"llama-server": "llamacpp"}.get(self.kind, self.kind)
        entry: dict[str, Json] = {"id": self.model, "object": "model", "owned_by": owner}
        if self.kind == "llama-server":
            context = self.engine.settings.context
            size = len(self._tokenizer.pieces)
            return entry | {"meta": {"n_vocab": size, "n_ctx": context}}
        return entry | {"root": self.model, "max_model_len": self.engine.settings.context}

    def describe_props(self) -> dict[str, Json]:
        """Return what llama-server tells about itself."""
        settings = self.engine.settings
        return {
            "default_generation_settings": {"n_ctx": settings.context or 4096},
            "total_slots": settings.slots or 4,
            "model_alias": self.model,
            "model_path": f"/models/{self.model}.gguf",
            "chat_template": "{{ messages[-1].content }}",
            "build_info": "b0-unknown",
            "modalities": {"vision": False, "audio": False},
        }

    def tokenize(self, text: str, body: Mapping[str, Json]) -> list[int]:
        tokenizer = self._tokenizer
        reads_special = body.get("parse_special", self.kind != "llama-server")
        ids = tokenizer.encode_with_specials(text) if reads_special else tokenizer.encode_now(text)
        return [token + self.token_offset for token in ids]

    @property
    def _tokenizer(self) -> Json:
        return self.engine.tokenizer

    # generating

    async def _generate(self, request: WorkerRequest, path: str, body: Json) -> None:
        faults = self._take_faults()
        if faults.closes_before_headers:
            request.abort()
            return
        if faults.status is not None:
            fields = {"retry-after": faults.retry_after, "location": faults.location}
            headers = {name: value for name, value in fields.items() if value is not None}
            error = {"message": faults.message, "code": faults.status}
            request.send_json({"error": error}, faults.status, headers)
            return
        self.generating += 1
        self._waiters.notify()
        try:
            await self._stream(request, self._make_api(path, body), faults)
        finally:
            self.generating -= 1
            self._waiters.notify()

    def _take_faults(self) -> WorkerFaults:
        self._uses += 1
        if self.faults is None or self._uses > self.faults.times:
            return WorkerFaults()
        return self.faults

    def _make_api(self, path: str, body: Mapping[str, Json]) -> WorkerApi:
        if self.kind == "llama-server":
            return LlamaServerRequest(path, body, self._tokenizer)
        if self.kind == "vllm":
            return VllmRequestApi(path, body, self._tokenizer)
        kind = SglangRequest if self.settings.is_cumulative else IncrementalSglangRequest
        return kind(path, body, self._tokenizer)

    async def _stream(self, request: WorkerRequest, api: WorkerApi, faults: WorkerFaults) -> None:
        request.start_stream()
        count = 0
        async with aclosing(self._play(api)) as batches:
            async for frames in batches:
                for frame in frames:
                    if await self._apply_faults(request, faults, count):
                        return
                    await request.send_frames([_write_frame(frame, faults)])
                    count += 1
        if not await self._apply_faults(request, faults, count):
            request.end_stream()

    async def _play(self, api: WorkerApi) -> AsyncGenerator[Iterator[Json], None]:
        forced = api.read_forced_ids() if self.enforces_grammars else None
        job = api.make_job()
        steps = self.engine.generate(job) if forced is None else _play_ids(job, forced)
        async with aclosing(steps):
            async for step in steps:
                yield api.make_frames(step)
        yield api.make_end()

    async def _apply_faults(self, request: WorkerRequest, faults: WorkerFaults, count: int) -> bool:
        """Do what goes wrong before this frame; True if that ends the response."""
        if faults.close_at == count:
            request.abort()
            return True
        if faults.error_at == count:
            error = {"message": faults.message, "type": "server_error", "code": 500}
            await request.send_frames([encode({"error": error})])
            request.end_stream()
            return True
        if faults.hang_at == count:
            if faults.sends_pings:
                request.send_raw(b"3\r\n:\n\n\r\n")
            await self._released.wait()
        return False


async def _play_ids(job: Job, ids: list[int]) -> AsyncGenerator[Step, None]:
    """Play the ids that a grammar forces."""
    limit = job.sampling.max_tokens
    first = len(ids) - 1 if limit is not None and limit <= len(ids) else len(ids)
    for index, token in enumerate(ids[:first]):
        yield Step(ids=[token], tokens=1, prompt_tokens=None if index else len(job.prompt))
    yield Step(ids=ids[first:], tokens=1, finish="length" if first < len(ids) else "stop")


def _write_frame(frame: Json, faults: WorkerFaults) -> bytes:
    if isinstance(frame, str):
        return frame.encode()
    if faults.ids is not None:
        for part in (frame, *frame.get("choices", ())):
            _damage_ids(part, faults.ids)
    return encode(frame)


def _damage_ids(part: dict[str, Json], fault: IdFault) -> None:
    """Damage the ids of a frame or of a choice in it."""
    for name in ("tokens", "token_ids", "output_ids"):
        ids = part.get(name)
        if not ids:
            continue
        match fault:
            case "out_of_range":
                part[name] = [1_000_000]
            case "text":
                part[name] = ["one"]
            case "missing":
                del part[name]
            case "fewer":
                part[name] = ids[:-1]
