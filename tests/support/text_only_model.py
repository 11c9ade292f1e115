"""Checks the media of a request against a model that reads text only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from dragoman.models.model import Model
from dragoman.pipeline.validate import validate_media, warn_about_tool_media
from dragoman.types import Capabilities, Chat, Request

TEXT_MODEL = cast(Model, SimpleNamespace(capabilities=Capabilities(modalities=("text",))))


def check_media(request: Request) -> list[str]:
    """Return the warnings about media in tool results; other media raises `Unsupported`."""
    chat = cast(Chat, request.prompts[0])
    validate_media(chat, TEXT_MODEL)
    return warn_about_tool_media(chat)
