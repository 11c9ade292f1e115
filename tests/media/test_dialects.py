"""The same picture has the same item through every wire API, and errors name the client's field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.testing import ScriptedEngine
from tests.support.file_server import FileAnswer, serve_files
from tests.support.media_files import make_image, make_pdf, make_sound, to_base64, to_data_url
from tests.support.serving import RunningServer, serve_scripted

MODEL = "scripted"
PNG, OTHER = make_image(), make_image(colour="blue")
SOUND = make_sound()
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


class MediaServer:
    """A server whose engine reads some modalities."""

    def __init__(self, running: RunningServer, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.client = httpx.Client(base_url=running.url, timeout=60)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.client.post(path, json={"model": MODEL, "stream": False, **body})

    def get_digests(self, path: str, body: dict[str, Any]) -> list[str]:
        """Send a request; return the digests of the media that the engine gets."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return [item.digest for item in self.engine.jobs[-1].media]

    def read_prompt(self) -> bytes:
        """Return the text of the last prompt."""
        prompt = self.engine.jobs[-1].prompt
        assert isinstance(prompt, list)
        return bytes(token for token in prompt if token < 256)

    def read_marked_prompt(self) -> str:
        """Return the text of the last prompt, with `#` for each picture."""
        job = self.engine.jobs[-1]
        assert isinstance(job.prompt, list)
        text = "".join("#" if token < 0 else chr(token) for token in job.prompt if token < 256)
        return text.replace("#" * (text.count("#") // len(job.media)), "#")


@pytest.fixture(scope="module")
def server() -> Iterator[MediaServer]:
    engine = ScriptedEngine(
        "Hello there!", tokens=True, context=8192, modalities=("text", "image", "audio")
    )
    with serve_scripted(engine) as running:
        media_server = MediaServer(running, engine)
        yield media_server
        media_server.client.close()


@pytest.fixture(scope="module")
def text_server() -> Iterator[MediaServer]:
    engine = ScriptedEngine("Hello there!", tokens=True, context=8192)
    with serve_scripted(engine) as running:
        media_server = MediaServer(running, engine)
        yield media_server
        media_server.client.close()


def make_chat_request(*parts: dict[str, Any]) -> dict[str, Any]:
    text = {"type": "text", "text": "What is it?"}
    return {"messages": [{"role": "user", "content": [*parts, text]}]}


def make_messages(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens": 20, **make_chat_request(*blocks)}


def make_input(*parts: dict[str, Any]) -> dict[str, Any]:
    text = {"type": "input_text", "text": "What is it?"}
    return {"input": [{"role": "user", "content": [*parts, text]}], "store": False}


def make_source(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "base64", "media_type": media_type, "data": to_base64(data)}


def list_requests(data: bytes) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a request with a picture for every place of every wire API, by name."""
    url = to_data_url(data)
    chat_call = {
        "id": "call_a",
        "type": "function",
        "function": {"name": "look", "arguments": "{}"},
    }
    part = {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}
    image = {"type": "image", "source": make_source(data)}
    question = {"role": "user", "content": "Look."}
    call = {"type": "function_call", "call_id": "call_a", "name": "look", "arguments": "{}"}
    custom = {"type": "custom_tool_call", "call_id": "call_a", "name": "look", "input": "x"}
    output = [{"type": "input_image", "image_url": url, "detail": "high"}]
    tool_use = {"type": "tool_use", "id": "call_a", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "call_a", "content": [image]}
    ollama = {"role": "user", "content": "What is it?", "images": [to_base64(data)]}
    return {
        "chat": ("/v1/chat/completions", make_chat_request(part)),
        "chat, string": (
            "/v1/chat/completions",
            make_chat_request({"type": "image_url", "image_url": url}),
        ),
        "chat, tool": (
            "/v1/chat/completions",
            {
                "messages": [
                    question,
                    {"role": "assistant", "content": None, "tool_calls": [chat_call]},
                    {"role": "tool", "tool_call_id": "call_a", "content": [part]},
                ],
                "tools": [TOOL],
            },
        ),
        "responses": (
            "/v1/responses",
            make_input({"type": "input_image", "image_url": url, "detail": "auto"}),
        ),
        "responses, tool": (
            "/v1/responses",
            {
                "input": [
                    question,
                    call,
                    {"type": "function_call_output", "call_id": "call_a", "output": output},
                ],
                "store": False,
            },
        ),
        "responses, custom tool": (
            "/v1/responses",
            {
                "input": [
                    question,
                    custom,
                    {"type": "custom_tool_call_output", "call_id": "call_a", "output": output},
                ],
                "store": False,
            },
        ),
        "messages": ("/v1/messages", make_messages(image)),
        "messages, tool": (
            "/v1/messages",
            {
                "max_tokens": 20,
                "messages": [
                    question,
                    {"role": "assistant", "content": [tool_use]},
                    {"role": "user", "content": [result]},
                ],
            },
        ),
        "ollama": ("/api/chat", {"messages": [ollama]}),
        "ollama, generate": (
            "/api/generate",
            {"prompt": "What is it?", "images": [to_base64(data)]},
        ),
    }


@pytest.mark.parametrize("name", list_requests(PNG))
def test_the_same_picture_is_the_same_item_everywhere(server: MediaServer, name: str) -> None:
    [expected] = server.get_digests(*list_requests(PNG)["chat"])
    assert server.get_digests(*list_requests(PNG)[name]) == [expected]
    [other] = server.get_digests(*list_requests(OTHER)[name])
    assert other != expected


def test_plain_conversations_with_a_picture_have_the_same_prompt(server: MediaServer) -> None:
    prompts = []
    for name in ("chat", "responses", "messages", "ollama"):
        path, body = list_requests(PNG)[name]
        assert server.post(path, body).status_code == 200
        prompts.append(server.engine.jobs[-1].prompt)
    assert all(prompt == prompts[0] for prompt in prompts)


def test_items_keep_their_order(server: MediaServer) -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": to_data_url(data)}} for data in (PNG, OTHER, PNG)
    ]
    digests = server.get_digests("/v1/chat/completions", make_chat_request(*parts))
    first, second, third = digests
    assert first == third != second


SOUNDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        make_chat_request(
            {"type": "input_audio", "input_audio": {"data": to_base64(SOUND), "format": "wav"}}
        ),
    ),
    "chat, URL": (
        "/v1/chat/completions",
        make_chat_request(
            {"type": "audio_url", "audio_url": {"url": to_data_url(SOUND, "audio/wav")}}
        ),
    ),
    "ollama": (
        "/api/chat",
        {"messages": [{"role": "user", "content": "What is it?", "images": [to_base64(SOUND)]}]},
    ),
}


@pytest.mark.parametrize("name", SOUNDS)
def test_the_same_sound_is_the_same_item_everywhere(server: MediaServer, name: str) -> None:
    [expected] = server.get_digests(*SOUNDS["chat"])
    assert server.get_digests(*SOUNDS[name]) == [expected]
    assert server.engine.jobs[-1].media[0].kind == "audio"


def list_documents(data: bytes, media_type: str) -> Iterator[tuple[str, dict[str, Any]]]:
    file = {"file_data": to_data_url(data, media_type), "filename": "a.txt"}
    yield "/v1/chat/completions", make_chat_request({"type": "file", "file": file})
    yield "/v1/responses", make_input({"type": "input_file", **file})
    document = {"type": "document", "source": make_source(data, media_type), "title": "a.txt"}
    yield "/v1/messages", make_messages(document)


@pytest.mark.parametrize(
    ("data", "media_type", "text"),
    [
        (b"one line\n", "text/plain", "one line\n"),
        (b'{"a": 1}', "application/json", '{"a": 1}\n\n'),
        (make_pdf(), "application/pdf", "Hello from a PDF.\n\n"),
    ],
)
def test_documents_are_text_for_any_model(
    text_server: MediaServer, data: bytes, media_type: str, text: str
) -> None:
    prompts = []
    for path, body in list_documents(data, media_type):
        response = text_server.post(path, body)
        assert response.status_code == 200, response.text
        prompts.append(text_server.read_prompt())
    assert f"a.txt\n{text}What is it?".encode() in prompts[0]
    assert prompts[0] == prompts[1] == prompts[2]


PLACED = {  # a text with two pictures, and what the prompt has of it; # is a picture
    "a[img]b[img]c": "a#b#c",
    "a[img]b": "#a#b",
    "[img][img]": "##",
    "ab": "##ab",
    "a[img]b[img]c[img]d": "a#b#c[img]d",
}


@pytest.mark.parametrize("text", PLACED)
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_pictures_are_put_where_the_text_says(server: MediaServer, path: str, text: str) -> None:
    images = [to_base64(PNG), to_base64(OTHER)]
    chat = {"messages": [{"role": "user", "content": text, "images": images}]}
    body = chat if path == "/api/chat" else {"prompt": text, "images": images}
    first, second = server.get_digests(path, body)
    assert [first] == server.get_digests(*list_requests(PNG)["ollama"])
    assert [second] == server.get_digests(*list_requests(OTHER)["ollama"])
    server.post(path, body)
    assert PLACED[text] in server.read_marked_prompt()


INVALID = b"\x89PNG\r\n\x1a\n" + bytes(40)
PARAMS = {
    "chat": "messages[0].content[0].image_url",
    "chat, string": "messages[0].content[0].image_url",
    "chat, tool": "messages[2].content[0].image_url",
    "responses": "input[0].content[0].image_url",
    "responses, tool": "input[2].output[0].image_url",
    "responses, custom tool": "input[2].output[0].image_url",
    "messages": "messages[0].content[0].source",
    "messages, tool": "messages[2].content[0].content[0].source",
    "ollama": "messages[0].images[0]",
    "ollama, generate": "images[0]",
}


@pytest.mark.parametrize("name", PARAMS)
def test_errors_name_the_field(server: MediaServer, name: str) -> None:
    path, body = list_requests(INVALID)[name]
    response = server.post(path, body)
    assert response.status_code == 400
    error = response.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert f"`{PARAMS[name]}`" in message
    if path.startswith(("/v1/chat", "/v1/responses")):
        assert (error["param"], error["code"]) == (PARAMS[name], "image_parse_error")


@pytest.mark.parametrize("name", PARAMS)
def test_a_model_of_text_alone_rejects_pictures_by_name(
    text_server: MediaServer, name: str
) -> None:
    """Except in tool results, where a sentence stands in the place of the picture."""
    path, body = list_requests(PNG)[name]
    response = text_server.post(path, body)
    if "tool" not in name:
        assert response.status_code == 400
        assert "This model does not support" in response.text
        return
    assert response.status_code == 200
    assert "is not shown to the model" in response.headers["x-dragoman-warning"]
    assert b"not shown" in text_server.read_prompt()


VIDEOS = [
    {"type": "video_url", "video_url": {"url": "https://a.example/a.mp4"}},
    {"type": "input_video", "input_video": {"data": "AAAA"}},
    {"type": "file", "file": {"file_data": to_data_url(b"\0\0\0\x18ftypisom1234", "video/mp4")}},
    {"type": "image_url", "image_url": {"url": "data:video/mp4;base64,AAAA"}},
]


@pytest.mark.parametrize("part", VIDEOS)
def test_video_is_rejected_by_name(server: MediaServer, part: dict[str, Any]) -> None:
    response = server.post("/v1/chat/completions", make_chat_request(part))
    assert response.status_code == 400
    assert "Video is not supported" in response.json()["error"]["message"]


@pytest.mark.parametrize("count", [16, 17])
def test_the_number_of_items_is_limited(server: MediaServer, count: int) -> None:
    part = {"type": "image_url", "image_url": {"url": to_data_url(PNG)}}
    response = server.post("/v1/chat/completions", make_chat_request(*[part] * count))
    assert response.status_code == (200 if count == 16 else 400)
    if count == 17:
        error = response.json()["error"]
        assert error["code"] == "too_many_images"
        assert error["param"] == "messages[0].content[16]"


def test_client_keys_and_hashes_have_no_effect(server: MediaServer) -> None:
    digests = []
    for data in (PNG, OTHER):
        part = {"type": "image_url", "image_url": {"url": to_data_url(data)}, "uuid": "same"}
        digests += server.get_digests(
            "/v1/chat/completions", {**make_chat_request({**part, "hash": "1", "digest": "2"})}
        )
    assert digests[0] != digests[1]


def test_prompts_with_media_are_counted_and_rendered(server: MediaServer) -> None:
    path, body = list_requests(PNG)["messages"]
    assert server.post(f"{path}/count_tokens", body).json()["input_tokens"] > 0
    response = server.post("/apply-template", list_requests(PNG)["chat"][1])
    assert response.status_code == 200
    path, body = list_requests(INVALID)["messages"]
    assert server.post(f"{path}/count_tokens", body).status_code == 400


def test_urls_of_allowed_hosts_are_fetched() -> None:
    engine = ScriptedEngine("Hi", tokens=True, context=8192, modalities=("text", "image"))
    answers = {"/a.png": FileAnswer(PNG, headers={"content-type": "image/png"})}
    with serve_files(answers) as files:
        options: dict[str, Any] = {"media_hosts": [files.host], "media_http": True}
        with serve_scripted(engine, **options) as running:
            server = MediaServer(running, engine)
            url = f"http://{files.host}/a.png"
            chat = make_chat_request({"type": "image_url", "image_url": {"url": url}})
            image = {"type": "image", "source": {"type": "url", "url": url}}
            digests = server.get_digests("/v1/chat/completions", chat)
            digests += server.get_digests("/v1/messages", make_messages(image))
            digests += server.get_digests(
                "/v1/responses", make_input({"type": "input_image", "image_url": url})
            )
            missing = make_chat_request({"type": "image_url", "image_url": f"{url}x"})
            response = server.post("/v1/chat/completions", missing)
            server.client.close()
        assert len(set(digests)) == 1
        assert len(digests) == 3
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "failed_to_download_image"
        assert len(files.log.requests) == 4
