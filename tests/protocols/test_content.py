"""Content parts: every wire API decodes text and media into the same types."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.errors import BadRequest, Unsupported
from dragoman.models.model import Model
from dragoman.pipeline.validate import validate_media, warn_about_tool_media
from dragoman.prompt.conversation import flatten_content
from dragoman.protocols import chat, responses
from dragoman.protocols.messages.decode import decode_request as decode_messages_request
from dragoman.protocols.shared.content import ContentPartFields, decode_content, join_content
from dragoman.signing import Signer
from dragoman.types import (
    AudioPart,
    Capabilities,
    Chat,
    Content,
    FilePart,
    ImagePart,
    TextPart,
    make_text_content,
)

SIGNER = Signer(b"k" * 32).for_owner("me")
URL = "https://x.example/cat.png"


def get_content(chat_prompt: object) -> Content:
    assert isinstance(chat_prompt, Chat)
    return chat_prompt.messages[-1].content


def decode_chat_content(part: dict[str, Any]) -> Content:
    body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
    return get_content(chat.decode_request(json.dumps(body).encode()).prompts[0])


def decode_responses_content(part: dict[str, Any]) -> Content:
    body = {"model": "m", "input": [{"role": "user", "content": [part]}]}
    decoded = responses.decode_request(json.dumps(body).encode())
    request = responses.to_request(decoded, (), owner="me", packer=SIGNER)
    return get_content(request.prompts[0])


def decode_messages_content(part: dict[str, Any]) -> Content:
    message = {"role": "user", "content": [part]}
    body = {"model": "m", "max_tokens": 5, "messages": [message]}
    request = decode_messages_request(json.dumps(body).encode(), False, SIGNER)
    return get_content(request.prompts[0])


CHAT, RESPONSES = "messages[0].content[0]", "input[0].content[0]"
PARTS: list[tuple[Any, dict[str, Any], object]] = [
    (
        decode_chat_content,
        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        ImagePart(wire_type="image_url", param=CHAT, field="image_url", url=URL, detail="low"),
    ),
    (
        decode_chat_content,
        {"type": "image_url", "image_url": URL},
        ImagePart(wire_type="image_url", param=CHAT, field="image_url", url=URL),
    ),
    (
        decode_chat_content,
        {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
        AudioPart(
            wire_type="input_audio",
            param=CHAT,
            field="input_audio",
            data="UklG",
            media_type="wav",
        ),
    ),
    (
        decode_chat_content,
        {"type": "file", "file": {"file_data": "JVBE", "filename": "a.pdf"}},
        FilePart(wire_type="file", param=CHAT, field="file", data="JVBE", name="a.pdf"),
    ),
    (
        decode_chat_content,
        {"type": "video_url", "video_url": {"url": URL}},
        FilePart(wire_type="video_url", param=CHAT, field="file", media_type="video/*"),
    ),
    (
        decode_responses_content,
        {"type": "input_image", "image_url": URL, "detail": "high"},
        ImagePart(
            wire_type="input_image", param=RESPONSES, field="image_url", url=URL, detail="high"
        ),
    ),
    (
        decode_responses_content,
        {"type": "input_image", "file_id": "file_1"},
        ImagePart(wire_type="input_image", param=RESPONSES, field="file_id", file_id="file_1"),
    ),
    (
        decode_responses_content,
        {"type": "input_file", "file_url": URL, "filename": "a.pdf"},
        FilePart(wire_type="input_file", param=RESPONSES, field="file_url", url=URL, name="a.pdf"),
    ),
    (
        decode_messages_content,
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
        ImagePart(
            wire_type="image", param=CHAT, field="source", data="iVBO", media_type="image/png"
        ),
    ),
    (
        decode_messages_content,
        {"type": "image", "source": {"type": "url", "url": URL}},
        ImagePart(wire_type="image", param=CHAT, field="source", url=URL),
    ),
    (
        decode_messages_content,
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        FilePart(wire_type="document", param=CHAT, field="source", file_id="file_1"),
    ),
]


@pytest.mark.parametrize(("decode", "part", "expected"), PARTS)
def test_media_is_decoded_into_parts(decode: Any, part: dict[str, Any], expected: object) -> None:
    assert decode(part) == (expected,)


@pytest.mark.parametrize(
    ("decode", "param"),
    [(decode_chat_content, CHAT), (decode_responses_content, RESPONSES)],
)
def test_an_unknown_type_and_a_missing_text_are_named(decode: Any, param: str) -> None:
    for part, name in (({"type": "hologram"}, "type"), ({"type": "input_text"}, "text")):
        with pytest.raises(BadRequest) as caught:
            decode(part)
        assert caught.value.param == f"{param}.{name}"


def test_media_fields_of_the_wrong_type_are_ignored() -> None:
    part = ContentPartFields("image_url", image_url={"url": 5}, detail=[], file_id={}, source="x")
    expected = ImagePart(wire_type="image_url", param="c[0]", field="image_url")
    assert decode_content([part], "c") == (expected,)


def test_neighbouring_texts_are_one_part_and_empty_text_is_none() -> None:
    texts = [ContentPartFields("text", text=text) for text in ("a", "", "b")]
    image = ContentPartFields("input_image")
    assert decode_content(texts, "c") == make_text_content("ab")
    assert decode_content("", "c") == decode_content(None, "c") == decode_content([], "c") == ()
    first, _, last = decode_content([*texts, image, *texts], "c")
    assert first == last == TextPart("ab")


def test_contents_are_joined_with_a_separator() -> None:
    image = ImagePart(wire_type="image", param="c")
    joined = join_content([make_text_content("a"), (image,), make_text_content("b")], "\n\n")
    assert joined == (TextPart("a\n\n"), image, TextPart("\n\nb"))
    assert join_content([make_text_content("a"), make_text_content("b")], "-") == make_text_content(
        "a-b"
    )


def make_model(*modalities: str) -> Model:
    return cast(Model, SimpleNamespace(capabilities=Capabilities(modalities=modalities)))


def test_a_model_accepts_the_media_of_its_modalities() -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": URL}]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "input_audio"}]},
        ],
    }
    chat_prompt = chat.decode_request(json.dumps(body).encode()).prompts[0]
    assert isinstance(chat_prompt, Chat)
    with pytest.raises(Unsupported) as caught:
        validate_media(chat_prompt, make_model("text"))
    assert caught.value.param == "messages[0].content[0]"
    validate_media(chat_prompt, make_model("text", "image"))
    assert "`input_audio`" in warn_about_tool_media(chat_prompt)[-1]
    sentence = flatten_content(chat_prompt.messages[1].content)
    assert sentence == "[input_audio: not shown, only text is supported]"
