"""A server with fabricated models that see and hear, and requests with media in every wire API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from dragoman import config, runtime
from dragoman.http.server import make_app
from dragoman.types.media_ids import RUN_LENGTH
from tests.support import vision_models as models
from tests.support.media_files import make_image, to_base64, to_data_url
from tests.support.serving import RunningServer, run_app

Part: TypeAlias = str | bytes  # text, or a PNG or WAV file
DEBUG = {"x-dragoman-debug": "prompt,prompt_ids"}
TOOL = {
    "name": "screenshot",
    "description": "Takes a screenshot.",
    "input_schema": {"type": "object", "properties": {}},
}
RED, BLUE = make_image(size=(16, 16)), make_image(size=(16, 16), colour="blue")


def write_models(root: Path, template: str = models.CHATML) -> Path:
    """Write a model that sees, one that hears and one that reads text only."""
    models.write_text_model(root / "eyes/eyes.gguf", template)
    models.write_mlp_projector(root / "eyes/mmproj-eyes-f16.gguf")
    models.write_text_model(root / "ears/ears.gguf", template)
    models.write_ultravox_projector(root / "ears/mmproj.gguf")
    models.write_text_model(root / "text/text.gguf", template)
    return root


@contextmanager
def serve_models(root: Path, model: str = "eyes", **options: Any) -> Iterator[RunningServer]:
    """Serve all models in a directory; one of them is the default."""
    settings = config.load(
        {"port": 0, "store": "sqlite://", "models_dir": str(root), "threads": 1} | options
    )
    built = runtime.build_runtime(runtime.build_models(settings, model), settings)
    with run_app(make_app(built, local=True)) as server:
        yield server


def is_sound(data: bytes) -> bool:
    return data.startswith(b"RIFF")


def make_chat_parts(parts: Sequence[Part]) -> list[Any]:
    made: list[Any] = []
    for part in parts:
        if isinstance(part, str):
            made.append({"type": "text", "text": part})
        elif is_sound(part):
            sound = {"data": to_base64(part), "format": "wav"}
            made.append({"type": "input_audio", "input_audio": sound})
        else:
            made.append({"type": "image_url", "image_url": {"url": to_data_url(part)}})
    return made


def make_response_parts(parts: Sequence[Part]) -> list[Any]:
    return [
        {"type": "input_text", "text": part}
        if isinstance(part, str)
        else {"type": "input_image", "image_url": to_data_url(part)}
        for part in parts
    ]


def make_message_parts(parts: Sequence[Part]) -> list[Any]:
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": to_base64(part)},
        }
        for part in parts
    ]


def ask_chat(parts: Sequence[Part], model: str) -> tuple[str, Any]:
    message = {"role": "user", "content": make_chat_parts(parts)}
    body = {"model": model, "messages": [message], "max_tokens": 8, "temperature": 0}
    return "/v1/chat/completions", body


def ask_responses(parts: Sequence[Part], model: str) -> tuple[str, Any]:
    message = {"role": "user", "content": make_response_parts(parts)}
    body = {"model": model, "input": [message], "max_output_tokens": 8, "temperature": 0}
    return "/v1/responses", body


def ask_messages(parts: Sequence[Part], model: str) -> tuple[str, Any]:
    message = {"role": "user", "content": make_message_parts(parts)}
    body = {"model": model, "messages": [message], "max_tokens": 8, "temperature": 0}
    return "/v1/messages", body


def ask_ollama(parts: Sequence[Part], model: str) -> tuple[str, Any]:
    """Its pictures stand before the text of the message."""
    media = [to_base64(part) for part in parts if isinstance(part, bytes)]
    text = "".join(part for part in parts if isinstance(part, str))
    message = {"role": "user", "content": text, "images": media}
    options = {"temperature": 0, "num_predict": 8}
    body = {"model": model, "messages": [message], "stream": False, "options": options}
    return "/api/chat", body


Ask: TypeAlias = Callable[[Sequence[Part], str], tuple[str, Any]]
DIALECTS: dict[str, Ask] = {
    "chat": ask_chat,
    "responses": ask_responses,
    "messages": ask_messages,
    "ollama": ask_ollama,
}


def post(
    server: RunningServer, path: str, body: Any, headers: dict[str, str] | None = None
) -> httpx.Response:
    """Send a request that asks for its prompt, unless it has other headers."""
    headers = DEBUG if headers is None else headers
    # without certificates, which take longer to load than the request
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=60, verify=False)  # noqa: S501


def ask(
    server: RunningServer, parts: Sequence[Part], model: str = "eyes", **fields: Any
) -> dict[str, Any]:
    """Ask in a chat, and return the whole response."""
    path, body = ask_chat(parts, model)
    response = post(server, path, body | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def get_text(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def count_cached(answer: dict[str, Any]) -> int:
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def get_ids(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    ids: list[int] = response.json()["debug"]["prompt_ids"]
    return ids


def find_runs(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """The items of a prompt, in order."""
    negative = [token for token in ids if token < 0]
    return [
        tuple(negative[start : start + RUN_LENGTH]) for start in range(0, len(negative), RUN_LENGTH)
    ]


def drop_media(ids: Sequence[int]) -> list[int]:
    return [token for token in ids if token >= 0]


def make_tool_chat(model: str, *parts: Part) -> tuple[str, Any]:
    """A turn of Claude Code: a tool was called, and its result has a screenshot."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "screenshot", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": make_message_parts(parts),
    }
    messages = [
        {"role": "user", "content": "Look at the page."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    body = {"model": model, "messages": messages, "tools": [TOOL], "max_tokens": 8}
    return "/v1/messages", body


def make_codex_turn(model: str, *parts: Part) -> tuple[str, Any]:
    """A turn of Codex, the same in its wire API."""
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Look at the page."}]},
        {"type": "function_call", "call_id": "toolu_1", "name": "screenshot", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "toolu_1",
            "output": make_response_parts(parts),
        },
    ]
    tool = {
        "type": "function",
        "name": "screenshot",
        "description": TOOL["description"],
        "parameters": TOOL["input_schema"],
        "strict": False,
    }
    body = {"model": model, "input": items, "tools": [tool], "max_output_tokens": 8, "store": False}
    return "/v1/responses", body
