"""LangChain's standard tests of chat models and embeddings, for `ChatOllama` and our server.

Runs in an environment of its own; `test_langchain` starts the server and this file.
"""

from __future__ import annotations

import base64
import os
from typing import Any

import httpx
import pytest
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

MODEL = os.environ["OLLAMA_MODEL"]
CALLS_TOOLS = MODEL == "scripted"
PICTURE = base64.b64decode(  # one red pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)


@pytest.fixture(autouse=True)
def pictures_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the suite a picture where it downloads one from GitHub."""

    def get(url: str, **_options: Any) -> httpx.Response:
        assert url.endswith(".png"), url
        return httpx.Response(200, content=PICTURE)

    monkeypatch.setattr(httpx, "get", get)


class TestChatOllama(ChatModelIntegrationTests):  # type: ignore[misc]
    """The whole suite for the scripted model.

    Tools and structured output are tested with that one only: a real model of the size that tests
    can run cannot be relied on to call tools.
    """

    @property
    def chat_model_class(self) -> Any:
        return ChatOllama

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": MODEL,
            "base_url": os.environ["OLLAMA_URL"],
            "num_predict": 400 if CALLS_TOOLS else 60,
            "temperature": 0,
        }

    @property
    def has_tool_calling(self) -> bool:
        return CALLS_TOOLS

    @property
    def has_tool_choice(self) -> bool:
        return False  # Ollama's API has none

    @property
    def has_structured_output(self) -> bool:
        return CALLS_TOOLS

    @property
    def supports_json_mode(self) -> bool:
        return CALLS_TOOLS

    @property
    def supports_image_inputs(self) -> bool:
        return CALLS_TOOLS  # the scripted model also reads pictures

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return f"{MODEL}:latest"


class TestOllamaEmbeddings(EmbeddingsIntegrationTests):  # type: ignore[misc]
    @property
    def embeddings_class(self) -> Any:
        return OllamaEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": MODEL, "base_url": os.environ["OLLAMA_URL"]}


def test_model_is_validated_by_the_list_of_models() -> None:
    options: dict[str, Any] = {"base_url": os.environ["OLLAMA_URL"], "validate_model_on_init": True}
    assert ChatOllama(model=MODEL, **options).model == MODEL
    with pytest.raises(ValueError, match="not found"):
        ChatOllama(model="nothing", **options)
