"""Tools in the generic form: our tags are tokens of the model where it has them, no others are."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from dragoman.prompt.renderer import PromptRenderer
from dragoman.prompt.special_tokens import MixedText, join_texts, trust_text
from dragoman.testing.byte_tokenizer import SPECIALS, ByteTokenizer
from dragoman.types import Chat, Message, Tool, ToolCall, text_content
from tests.support.paths import TEMPLATES

TAGS = tuple(
    f"<{slash}{name}>" for name in ("tools", "tool_call", "tool_response") for slash in ("", "/")
)


def story(said: str) -> Chat:
    """A conversation about tools in which the client says the same thing everywhere."""
    schema = {"type": "object", "properties": {said: {"description": said}}}
    call = ToolCall(id="1", name=said, arguments=json.dumps({said: said}, ensure_ascii=False))
    other = ToolCall(id="2", name="f", arguments=said)
    return Chat(
        messages=(
            Message(role="system", content=text_content(said)),
            Message(role="user", content=text_content(said)),
            Message(role="assistant", content=text_content(said), tool_calls=(call, other)),
            Message(role="tool", content=text_content(said), tool_call_id="1"),
            Message(role="tool", content=text_content(said), tool_call_id="2"),
            Message(role="user", content=text_content(said)),
        ),
        tools=(Tool(name=said, description=said, parameters=schema),),
    )


def specials(template: str, said: str, more: tuple[str, ...] = ()) -> Counter[str]:
    """How often each special token is in the prompt."""
    tokenizer = ByteTokenizer(SPECIALS, markup=(*TAGS, *more))
    source = (TEMPLATES / template).read_text(encoding="utf-8")
    rendered = asyncio.run(PromptRenderer(source, tokenizer).render(story(said)))
    assert rendered.ids is not None
    assert said in rendered.text
    names = {token: text for text, token in tokenizer.specials.items()}
    return Counter(names[token] for token in rendered.ids if token in names)


@pytest.mark.parametrize("template", ["chatml.jinja", "gemma.jinja"])
def test_our_tags_are_tokens_where_the_model_has_them(template: str) -> None:
    found = specials(template, "plain")
    assert found["<tool_call>"] == found["</tool_call>"] == 4  # twice in the offer, two calls
    assert found["<tool_response>"] == found["</tool_response>"] == 3
    assert found["<tools>"] == found["</tools>"] == 2


@pytest.mark.parametrize("template", ["chatml.jinja", "gemma.jinja"])
@pytest.mark.parametrize(
    "said",
    [*TAGS, "<|im_end|>", "<tool_call", "tool_call>", "<", ">", "</tool_call>\n<tool_call>\n"],
)
def test_no_text_of_the_clients_becomes_one(template: str, said: str) -> None:
    for text in (said, f" {said} ", f"x{said}x"):
        assert specials(template, text) == specials(template, "plain")


@pytest.mark.parametrize(
    "mark", ["<tool_response>\nX", "X\n</tool_response>", "\nX\n", "X\n<tool_call>\n", "\n\nX\n\n"]
)
def test_no_token_is_made_of_ours_and_theirs(mark: str) -> None:
    assert specials("chatml.jinja", "X", (mark,))[mark] == 0


def test_texts_are_joined_with_what_is_ours_in_them() -> None:
    plain = join_texts(["a", "b"], "-")
    assert (plain, type(plain)) == ("a-b", str)
    mixed = join_texts(
        [join_texts(["a", trust_text("<b>")]), "", trust_text("<c>"), trust_text("<d>")], "-"
    )
    assert mixed == "a<b>--<c>-<d>"
    assert isinstance(mixed, MixedText)
    assert mixed.parts == (
        ("a", False),
        ("<b>", True),
        ("--", False),
        ("<c>", True),
        ("-", False),
        ("<d>", True),
    )
