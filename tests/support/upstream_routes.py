"""What LM Studio and Ollama answer, as routes of a `TableServer`.

A request that generates gets `ANSWER`; one without its prompt is invalid, as both servers say.
"""

from __future__ import annotations

from typing import Any

from tests.support.upstream_servers import (
    Answer,
    Frames,
    list_models,
    make_chat_frames,
    make_text_frames,
)

ANSWER = "Hello."
INVALID: tuple[int, Any] = (400, {"error": {"message": "Field required"}})


def answer_text(body: Any) -> tuple[int, Any] | Frames:
    return make_text_frames(ANSWER) if "prompt" in body else INVALID


def answer_chat(body: Any) -> tuple[int, Any] | Frames:
    return make_chat_frames({"content": ANSWER}) if "messages" in body else INVALID


def make_lm_studio_routes(model: str) -> dict[str, Answer]:
    details = {
        "id": model,
        "type": "llm",
        "state": "loaded",
        "max_context_length": 32768,
        "loaded_context_length": 4096,
    }
    return {
        "/v1/models": list_models(model, owner="organization_owner"),
        "/api/v0/models": (200, {"data": [details]}),
        "/api/version": (200, {"error": "Unexpected endpoint or method. (GET /api/version)"}),
        "/v1/completions": answer_text,
        "/v1/chat/completions": answer_chat,
    }


def make_ollama_routes(model: str) -> dict[str, Answer]:
    return {
        "/v1/models": list_models(model, owner="library"),
        "/api/version": (200, {"version": "0.24.1"}),
        "/api/ps": (200, {"models": [{"name": model, "context_length": 4096}]}),
        "/api/show": (
            200,
            {
                "capabilities": ["completion", "tools", "thinking"],
                "details": {"parameter_size": "4.0B", "quantization_level": "Q4_K_M"},
                "model_info": {
                    "general.architecture": "qwen3",
                    "qwen3.context_length": 40960,
                },
            },
        ),
        "/v1/completions": answer_text,
        "/v1/chat/completions": answer_chat,
    }
