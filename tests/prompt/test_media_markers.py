"""Where templates want pictures and sound: the conventions that models have."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.errors import BadRequest
from dragoman.prompt.renderer import PromptRenderer, RenderedPrompt
from dragoman.prompt.template.media_markers import find_placeholders
from dragoman.types import (
    AudioPart,
    Chat,
    ContentPart,
    ImagePart,
    Message,
    TextPart,
    Tool,
    ToolCall,
)
from dragoman.types.media_ids import make_media_ids
from tests.support.media_files import make_image, make_sound
from tests.support.recording_tokenizer import RecordingTokenizer
from tests.support.vision_items import make_item

RED, BLUE = make_item(make_image()), make_item(make_image(colour="blue"))
SOUND = make_item(make_sound())
PARTS = (
    "{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}%s{% endfor %}{% endif %}"
)
END = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def make_template(parts: str) -> str:
    """A template that writes parts in its own way."""
    body = PARTS.replace("%s", parts)
    return "{% for m in messages %}<|im_start|>{{ m.role }}\n" + body + "<|im_end|>\n" + END


QWEN = make_template(
    "{% if p.type == 'image' or 'image' in p %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif p.type == 'text' %}{{ p.text }}{% endif %}"
)
GEMMA = make_template(
    "{% if p['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% elif p['type'] == 'text' %}{{ p['text'] | trim }}{% endif %}"
)
URLS = make_template(
    "{% if p.type == 'image_url' %}[IMG]{% elif p.type == 'audio_url' %}[SND]"
    "{% else %}{{ p.text }}{% endif %}"
)
LINES = make_template("{% if p.type == 'image' %}<image>\n{% else %}{{ p.text }}{% endif %}")
NUMBERED = "{% set ns = namespace(n=0) %}" + make_template(
    "{% if p.type == 'image' %}{% set ns.n = ns.n + 1 %}<|image_{{ ns.n }}|>"
    "{% else %}{{ p.text }}{% endif %}"
)
STRINGS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n" + END
FIRST = (  # all pictures of a message before its text
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content if p.type == 'image' %}<image>{% endfor %}"
    "{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>\n"
    + END
)
DEAF = make_template("{% if p.type == 'text' %}{{ p.text }}{% endif %}")


def make_part(content: Any) -> ContentPart:
    if isinstance(content, str):
        return TextPart(content)
    part_type = AudioPart if content.kind == "audio" else ImagePart
    return part_type(wire_type="image_url", param="messages[0].content[0]", item=content)


def make_message(role: Any, *contents: Any, **fields: Any) -> Message:
    return Message(role=role, content=tuple(map(make_part, contents)), **fields)


def render(template: str, *messages: Message, **fields: Any) -> RenderedPrompt:
    renderer = PromptRenderer(template, RecordingTokenizer("<|im_start|>", "<|im_end|>"))
    return asyncio.run(renderer.render(Chat(messages=messages, **fields)))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (QWEN, {("user", "image"): "<|vision_start|><|image_pad|><|vision_end|>"}),
        (GEMMA, {("user", "image"): "<start_of_image>"}),
        (URLS, {("user", "image"): "[IMG]", ("user", "audio"): "[SND]"}),
        (LINES, {("user", "image"): "<image>"}),
        (FIRST, {("user", "image"): "<image>"}),
        (NUMBERED, {}),
        (STRINGS, {}),
        (DEAF, {}),
    ],
)
def test_placeholders_are_found(template: str, expected: dict[tuple[str, str], str]) -> None:
    found = {(entry.role, entry.kind): entry.text for entry in find_placeholders(template)}
    assert {key: text for key, text in found.items() if key[0] == "user"} == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (QWEN, "a[media]b[media]c"),
        (GEMMA, "a[media]b[media]c"),
        (URLS, "a[media]b[media]c"),
        (LINES, "a[media]\nb[media]\nc"),
        (FIRST, "[media][media]abc"),
        (NUMBERED, "a[media]b[media]c"),
        (STRINGS, "a[media]b[media]c"),
        (DEAF, "a[media]b[media]c"),
    ],
)
def test_media_are_where_the_template_wants_them(template: str, expected: str) -> None:
    prompt = render(template, make_message("user", "a", RED, "b", BLUE, "c"))
    assert prompt.text == f"<|im_start|>user\n{expected}<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.media == (RED, BLUE)
    ids = [token for token in prompt.ids or () if token < 0]
    assert ids == [*make_media_ids(RED.digest), *make_media_ids(BLUE.digest)]
    # a conversation without media is rendered as before, so that prefixes stay the same
    plain = render(template, make_message("user", "a"))
    assert plain.text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"


def test_sound_and_pictures_keep_their_order() -> None:
    prompt = render(URLS, make_message("user", SOUND, "a", RED), make_message("user", RED, SOUND))
    assert prompt.media == (SOUND, RED, RED, SOUND)


@pytest.mark.parametrize("template", [QWEN, LINES, STRINGS, FIRST])
def test_no_text_of_a_client_becomes_a_placeholder(template: str) -> None:
    text = "<image> <|vision_start|><|image_pad|><|vision_end|> <ima"
    prompt = render(template, make_message("user", text, RED, "ge>"))
    assert prompt.media == (RED,)
    assert text in prompt.text


def test_results_are_put_in_order_with_their_pictures() -> None:
    """Results follow the order of the calls, and a template without results writes them as text."""
    calls = tuple(ToolCall(id=name, name="look", arguments="{}") for name in ("one", "two"))
    messages = [
        make_message("user", "Look."),
        Message(role="assistant", tool_calls=calls),
        make_message("tool", "second", BLUE, tool_call_id="two"),
        make_message("tool", "first", RED, tool_call_id="one"),
    ]
    prompt = render(QWEN, *messages, tools=(Tool(name="look"),))
    assert prompt.media == (RED, BLUE)
    assert "first[media]" in prompt.text
    assert "second[media]" in prompt.text


def test_a_template_that_drops_pictures_is_an_error() -> None:
    drops = "{% for m in messages %}{{ m.content | replace('\ufdd3', '') }}{% endfor %}"
    with pytest.raises(BadRequest, match="does not write pictures"):
        render(drops, make_message("user", RED, "a"))


@pytest.mark.parametrize("filter_name", ["tojson", "string"])
def test_pictures_in_json_are_found(filter_name: str) -> None:
    """Templates write results as JSON, in which the marker may be escaped."""
    written = f"{{{{ m.content | {filter_name} }}}}"
    template = "{% for m in messages %}" + written + " {% endfor %}"
    escaped = "\\ufdd3" + "ab" * 32 + "\\ufdd3"  # no marker, but a text that looks like one
    prompt = render(template, make_message("user", "a", RED, f"b{escaped}"))
    assert prompt.media == (RED,)
    assert "a[media]b" in prompt.text


def test_a_template_that_rejects_parts_here_gets_text() -> None:
    rejects = QWEN.replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% if m.content is not string and messages | length > 1 %}"
        "{{ raise_exception('only one message may have parts') }}{% endif %}",
        1,
    )
    assert find_placeholders(rejects)
    prompt = render(rejects, make_message("user", "a", RED), make_message("user", "b"))
    assert prompt.media == (RED,)
