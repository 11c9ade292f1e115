"""The requests that commands make."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from dragoman.cli.client.transport import ClientResponse, ClientTransport, RequestFailed, get_header
from dragoman.types import Json

T = TypeVar("T")
LOADING = "model_loading"  # the code of an error that a retry fixes
# what an error tells those who write requests themselves
HTTP_DETAILS = re.compile(r": send it as `Authorization: Bearer KEY`| \([A-Z]{3,7} /[^\s()]*\)")


class ServedUpstream(Struct, kw_only=True):
    """The server that runs a model."""

    server: str
    version: str = ""
    model: str = ""
    api: str = ""
    limitations: tuple[str, ...] = ()


class ServedModel(Struct, kw_only=True):
    """A model as `/v1/models` lists it. Fields that are unknown before it is loaded are None."""

    id: str
    status: str = "unloaded"
    created: int = 0
    size: int = 0
    architecture: str | None = None
    parameters: str | None = None
    quantization: str | None = None
    context_length: int | None = None
    max_model_len: int | None = None
    memory: int | None = None
    slots: int | None = None
    slots_busy: int | None = None
    requests_waiting: int | None = None
    expires_at: float | None = None
    modalities: tuple[str, ...] = ("text",)
    capabilities: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    error: str | None = None
    upstream: ServedUpstream | None = None  # the server that runs it, if it is another one


class ServedModelList(Struct):
    data: list[ServedModel]


class TokenIds(Struct):
    tokens: list[int]


class AnswerStream:
    """The events of one streamed answer. Closing it cancels the request."""

    def __init__(self, response: ClientResponse) -> None:
        self._response = response
        self.warnings = [value for name, value in response.headers if name == "x-dragoman-warning"]

    def __iter__(self) -> Iterator[Json]:
        for line in self._response.read_lines():
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = decode(line.removeprefix(b"data: "), dict[str, Json])
            if "error" in event:
                raise make_error(200, event)
            yield event

    def close(self) -> None:
        self._response.close()


class DragomanClient:
    """Makes requests over a transport and turns error responses into `RequestFailed`."""

    def __init__(self, transport: ClientTransport) -> None:
        self._transport = transport
        self.address = transport.address
        self.on_loading: Callable[[], None] = lambda: None  # called when a model is not loaded yet

    @property
    def place(self) -> str:
        """Where the model runs, as a phrase."""
        return f"at {self.address}" if "://" in self.address else f"in {self.address}"

    def list_models(self) -> list[ServedModel]:
        return self._fetch("GET", "/v1/models", ServedModelList).data

    def get_model(self, name: str) -> ServedModel:
        return self._fetch("GET", f"/v1/models/{name}", ServedModel)

    def unload(self, name: str) -> ServedModel:
        return self._fetch("POST", "/admin/models/unload", ServedModel, {"model": name})

    def tokenize(self, model: str, text: str) -> list[int]:
        body = {"model": model, "prompt": text}
        return self._fetch("POST", "/tokenize", TokenIds, body).tokens

    def stream_chat(self, body: dict[str, Json]) -> AnswerStream:
        return self._stream("/v1/chat/completions", body)

    def stream_completion(self, body: dict[str, Json]) -> AnswerStream:
        return self._stream("/v1/completions", body)

    def close(self) -> None:
        self._transport.close()

    def _stream(self, path: str, body: dict[str, Json]) -> AnswerStream:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return AnswerStream(self._send("POST", path, body | options))

    def _fetch(self, method: str, path: str, kind: type[T], body: Json = None) -> T:
        return decode(self._send(method, path, body).read(), kind)

    def _send(self, method: str, path: str, body: Json = None) -> ClientResponse:
        """Send a request; while its model loads, wait and send it again."""
        data = None if body is None else json.dumps(body).encode()
        while True:
            response = self._transport.send(method, path, data)
            if response.status == 200:
                return response
            error = read_error(response)
            if error.code != LOADING:
                raise error
            self.on_loading()
            time.sleep(float(get_header(response, "retry-after") or 1))


def decode(data: bytes, kind: type[T]) -> T:
    """Decode what a server sent; the server may be of another version, or another program."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RequestFailed(
            "The server sent an answer that this command does not understand."
        ) from None


def read_error(response: ClientResponse) -> RequestFailed:
    body = response.read()
    response.close()
    try:
        return make_error(response.status, msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return RequestFailed(f"The server answered with status {response.status}.", response.status)


def make_error(status: int, body: Json) -> RequestFailed:
    """Make the error that the error object of a response describes."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return RequestFailed(f"The server answered with status {status}.", status)
    message = error["message"]
    advice = ""
    if (status == 401 and " /admin/" in message) or (status == 403 and "admin key" in message):
        advice = " Set it with --admin-key or DRAGOMAN_ADMIN_KEY."
    elif status == 401:
        advice = " Set it with --api-key or DRAGOMAN_API_KEY."
    message = HTTP_DETAILS.sub("", message) + advice
    return RequestFailed(message, status, error.get("code"), error.get("param"))
